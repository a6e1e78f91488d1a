-- All TTLs of users' keys are read and written here. The key of a timer runs out when the timer is due.

-- ttl.read returns when a key runs out, in unix ms; -1 without a TTL, -2 without a key. A time after LATEST counts as
-- LATEST: readers of JSON know no later time, and a score or a Lua number would lose digits.
function ttl.read(key) return math.min(redis.call('PEXPIRETIME', key), LATEST) end

-- ttl.try is ttl.read, but nil if timerd may not ask.
function ttl.try(key)
  local at = redis.pcall('PEXPIRETIME', key)
  if type(at) == 'number' then return math.min(at, LATEST) end
end

-- ttl.follow is called once the index has the time that ttl.try returned. Only virtual time has work here.
function ttl.follow() end

-- ttl.set sets a trigger key that runs out at a time, in text.
function ttl.set(key, at_text) redis.call('SET', key, trigger.mark(key), 'PXAT', at_text) end

-- ttl.try_set is ttl.set at a time, and returns whether timerd may.
function ttl.try_set(key, at) return not redis.pcall('SET', key, trigger.mark(key), 'PXAT', int(at)).err end

-- ttl.try_move changes when a key runs out, and returns whether it exists and timerd may.
function ttl.try_move(key, at) return redis.pcall('PEXPIREAT', key, int(at)) == 1 end
