-- ttl.read returns what PEXPIRETIME says of a user's key. One that runs out after LATEST counts as due then: readers
-- of JSON know no later time, and a score or a Lua number would lose digits.
function ttl.read(key) return math.min(redis.call('PEXPIRETIME', key), LATEST) end

-- expiry is ttl.read, but nil if timerd may not ask.
function ttl.try(key)
  local at = redis.pcall('PEXPIRETIME', key)
  if type(at) == 'number' then return math.min(at, LATEST) end
end
