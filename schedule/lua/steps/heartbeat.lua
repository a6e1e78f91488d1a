#!lua flags=allow-oom
-- include: clock
--[[ heartbeat notes a sign of life of a timerd, with what it says of itself, and forgets
the dead.
KEYS    1  the set of timerds at work: the keys themselves and not their partition's
           prefix, because the call may follow them with ASKING while their slot moves
        2  the hash of what they say of themselves
        3  the hash of what they have counted
        4  the set of those that hear a server's events, "server id"
ARGV    1  the timerd's instance id
        2  after how many ms of silence one is dead
        3  what it says of itself, always the same
        4  what it has counted, or an empty string to leave that
        5  the server that this is about, empty for a single Redis
        6  1 if the timerd hears all events of that server now
Returns {the ids of those alive, sorted; of these, those that hear that server}. One that was killed
counts as hearing until it counts as dead.
If its reply is lost: again it notes a later sign of life. ]]

-- Of how many timerds it is kept what they say. If there is more, somebody else has written
-- there: all of it is forgotten, and they say it again.
local MOST = 1000

local now = read_clock()
local changes = redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', int(now - tonumber(ARGV[2])))
changes = changes + redis.call('ZADD', KEYS[1], now, ARGV[1])
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

redis.call('ZREMRANGEBYSCORE', KEYS[4], '-inf', int(now - tonumber(ARGV[2])))
if ARGV[6] == '1' then
  redis.call('ZADD', KEYS[4], now, ARGV[5] .. ' ' .. ARGV[1])
else
  redis.call('ZREM', KEYS[4], ARGV[5] .. ' ' .. ARGV[1])
end
local names, hearing = {}, {}
for i = 1, #alive do names[i] = ARGV[5] .. ' ' .. alive[i] end
local said = redis.call('ZMSCORE', KEYS[4], unpack(names))
for i = 1, #alive do
  if said[i] then hearing[#hearing + 1] = alive[i] end
end
return { alive, hearing }
