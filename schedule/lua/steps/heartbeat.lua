#!lua flags=allow-oom
-- include: clock
--[[ heartbeat notes a sign of life of a timerd, with what it says of itself, and forgets
the dead. A sign of life of later than now is of a clock that was ahead, and forgotten too: a living timerd
sends the next one.
KEYS    1  the set of timerds at work: the keys themselves and not their partition's
           prefix, because the call may follow them with ASKING while their slot moves
        2  the hash of what they say of themselves
        3  the hash of what they have counted
        4  the set of timerds unable to publish
ARGV    1  the timerd's instance id
        2  after how many ms of silence one is dead
        3  what it says of itself, always the same
        4  what it has counted, or an empty string to leave that
        5  1 if it cannot publish now, else 0
        6  how many ms ahead of now a sign of life may be
Returns two lists of ids, each sorted: of the living able to publish, and of the others.
If its reply is lost: again it notes a later sign of life. ]]

-- Of how many timerds it is kept what they say. If there is more, somebody else has written
-- there: all of it is forgotten, and they say it again.
local MOST = 1000

local now = read_clock()
local dead, ahead = int(now - tonumber(ARGV[2])), '(' .. int(now + tonumber(ARGV[6]))

-- forget_old removes the dead, and members of later than now, from a set. It returns how many.
local function forget_old(set)
  return redis.call('ZREMRANGEBYSCORE', set, '-inf', dead) + redis.call('ZREMRANGEBYSCORE', set, ahead, '+inf')
end

local changes = forget_old(KEYS[1]) + redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('HSETNX', KEYS[2], ARGV[1], ARGV[3])
if ARGV[4] ~= '' then redis.call('HSET', KEYS[3], ARGV[1], ARGV[4]) end
local alive = redis.call('ZRANGE', KEYS[1], 0, -1)

-- forget_dead takes the dead out of a hash.
local function forget_dead(hash)
  if redis.call('HLEN', hash) > MOST then return redis.call('UNLINK', hash) end
  local here, gone = {}, {}
  for i = 1, #alive do here[alive[i]] = true end
  local said = redis.call('HKEYS', hash)
  for i = 1, #said do
    if not here[said[i]] then gone[#gone + 1] = said[i] end
  end
  if #gone > 0 then redis.call('HDEL', hash, unpack(gone)) end
end

if changes > 0 then
  forget_dead(KEYS[2])
  forget_dead(KEYS[3])
end
table.sort(alive)

if ARGV[5] == '1' then
  redis.call('ZADD', KEYS[4], now, ARGV[1])
else
  redis.call('ZREM', KEYS[4], ARGV[1])
end
forget_old(KEYS[4])
local cannot, able, unable = redis.call('ZMSCORE', KEYS[4], unpack(alive)), {}, {}
for i = 1, #alive do
  local list = cannot[i] and unable or able
  list[#list + 1] = alive[i]
end
return { able, unable }
