-- TTLs of users' keys in timerd dev --virtual, in place of lib/ttl.lua. The key of a known timer runs out, by Redis's
-- clock, at the very instant at which the timer is due by the virtual one: that is later, and the claim deletes the
-- key. A key that runs out at any other instant was set or changed just now, and its TTL counts from now. So an advance
-- rewrites no key.

-- virtual returns the virtual time at which a key runs out, by Redis's answer.
local function virtual(key, at)
  if at >= 0 and at ~= index.pending(key) then at = at + clock.due() - clock.real() end
  return math.min(at, LATEST)
end

-- ttl.read returns when a key runs out, in unix ms; -1 without a TTL, -2 without a key.
function ttl.read(key) return virtual(key, redis.call('PEXPIRETIME', key)) end

-- ttl.try is ttl.read, but nil if timerd may not ask.
function ttl.try(key)
  local at = redis.pcall('PEXPIRETIME', key)
  if type(at) == 'number' then return virtual(key, at) end
end

-- ttl.follow makes a key run out at the instant of its timer's due time, a result of ttl.try.
function ttl.follow(key, at)
  if redis.pcall('PEXPIRETIME', key) ~= at then redis.pcall('PEXPIREAT', key, int(at)) end
end

-- ttl.set sets a trigger key that runs out at a time, in text.
function ttl.set(key, at_text) redis.call('SET', key, trigger.mark(key), 'PXAT', at_text) end

-- ttl.try_set is ttl.set at a time, and returns whether timerd may.
function ttl.try_set(key, at) return not redis.pcall('SET', key, trigger.mark(key), 'PXAT', int(at)).err end

-- ttl.try_move changes when a key runs out, and returns whether it exists and timerd may.
function ttl.try_move(key, at) return redis.pcall('PEXPIREAT', key, int(at)) == 1 end
