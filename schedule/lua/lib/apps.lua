-- Limit of the apps that a partition knows. Further ones share an empty name.
local MAX_APPS = 1000

-- apps.of returns the app of a key.
function apps.of(key) return string.match(key, '^[^:]+') end

-- apps.unknown returns the name under which an app is to become known, and whether it is in doubt; or nil if it is
-- known.
function apps.unknown(app)
  local known_key = run.prefix .. 'known'
  local since = tonumber(redis.call('ZSCORE', known_key, app) or nil)
  if not since and redis.call('ZRANGE', known_key, MAX_APPS - 1, MAX_APPS - 1)[1] then
    app = ''
    since = tonumber(redis.call('ZSCORE', known_key, app) or nil)
  end
  if since and since > 0 then return nil end
  return app, since ~= nil
end

-- apps.announce tells the timerds of an app that apps.unknown has returned: they follow its trigger keys, whatever
-- their namespaces say.
function apps.announce(app, doubted)
  if not app then return end
  redis.call('ZADD', run.prefix .. 'known', clock.real(), app)
  if not doubted then redis.pcall('PUBLISH', WAKE, 'app ' .. app) end
end

-- apps.doubt doubts the known apps that the audit begun at began has not met, or forgets those doubted before. It
-- returns the number forgotten, and the number known.
function apps.doubt(began, met)
  local is_met = {}
  for i = 1, #met do is_met[met[i]] = true end
  local known_key = run.prefix .. 'known'
  local known = redis.call('ZRANGE', known_key, 0, -1, 'WITHSCORES')
  local scores, forgotten = {}, {}
  for i = 1, #known, 2 do
    local app, since = known[i], tonumber(known[i + 1])
    local score
    if is_met[app] then
      if since < 0 then score = -since end
    elseif since < 0 then
      if -since < began then forgotten[#forgotten + 1] = app end
    elseif since < began then
      score = -clock.real()
    end
    if score then scores[#scores + 1], scores[#scores + 2] = int(score), app end
  end
  if #scores > 0 then redis.call('ZADD', known_key, unpack(scores)) end
  if #forgotten > 0 then redis.call('ZREM', known_key, unpack(forgotten)) end
  return #forgotten, #known / 2
end
