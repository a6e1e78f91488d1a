-- include: wake clock index
-- announce tells the timerds when there is something to claim: 0 for at once.
local function announce(due) redis.pcall('PUBLISH', WAKE, tag_of() .. ' ' .. int(due)) end

-- announce_first announces a member that has become the first to be due, unless it is
-- so far off that the timerds find it by themselves.
local function announce_first(member, due)
  if due <= now + WAKE_WITHIN and redis.call('ZRANGE', due_key, 0, 0)[1] == member then announce(due) end
end

-- How many apps a partition knows at most. Those beyond share an empty name.
local MAX_APPS = 1000

-- announce_app tells the timerds of the app of a timer that is set when it is not known:
-- they follow its trigger keys, whatever their namespaces say.
local function announce_app(key)
  local app, known_key = string.match(key, '^[^:]+'), prefix .. 'known'
  local since = tonumber(redis.call('ZSCORE', known_key, app) or nil)
  if not since and redis.call('ZRANGE', known_key, MAX_APPS - 1, MAX_APPS - 1)[1] then
    app = ''
    since = tonumber(redis.call('ZSCORE', known_key, app) or nil)
  end
  if since and since > 0 then return end
  redis.call('ZADD', known_key, now, app)
  if not since then redis.pcall('PUBLISH', WAKE, 'app ' .. app) end
end
