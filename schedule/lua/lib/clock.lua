-- How long a tombstone is kept, in ms.
clock.REMEMBER = 60000

-- read returns the time of this server in unix ms, and TIME's reply.
function clock.read()
  local t = redis.call('TIME')
  return tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000), t
end
