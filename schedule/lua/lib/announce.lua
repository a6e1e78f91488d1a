-- include: wake clock index
-- announce tells the timerds when there is something to claim: 0 for at once.
local function announce(due) redis.pcall('PUBLISH', WAKE, tag_of() .. ' ' .. int(due)) end

-- announce_first announces a member that has become the first to be due, unless it is
-- so far off that the timerds find it by themselves. It comes after the writes, so it fails none of them.
local function announce_first(member, due)
  if due <= now + WAKE_WITHIN and redis.pcall('ZRANGE', due_key, 0, 0)[1] == member then announce(due) end
end

-- How many apps a partition knows at most. Those beyond share an empty name.
local MAX_APPS = 1000

-- app_of returns the app of a key.
local function app_of(key) return string.match(key, '^[^:]+') end

-- unknown_app returns the name under which an app is to become known, and whether it is in doubt; or nil if it
-- is known.
local function unknown_app(app)
  local known_key = prefix .. 'known'
  local since = tonumber(redis.call('ZSCORE', known_key, app) or nil)
  if not since and redis.call('ZRANGE', known_key, MAX_APPS - 1, MAX_APPS - 1)[1] then
    app = ''
    since = tonumber(redis.call('ZSCORE', known_key, app) or nil)
  end
  if since and since > 0 then return nil end
  return app, since ~= nil
end

-- announce_app tells the timerds of an app that unknown_app has returned: they follow its trigger keys, whatever
-- their namespaces say.
local function announce_app(app, doubted)
  if not app then return end
  redis.call('ZADD', prefix .. 'known', now, app)
  if not doubted then redis.pcall('PUBLISH', WAKE, 'app ' .. app) end
end
