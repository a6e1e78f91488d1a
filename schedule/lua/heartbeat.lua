--[[ heartbeat notes a sign of life of a timerd, and forgets the dead.
KEYS    1  the set of timerds at work: the key itself and not its partition's prefix,
           because the call may follow the key with ASKING while its slot moves
ARGV    1  the timerd's instance id
        2  after how many ms of silence one is dead
Returns the ids of those alive, sorted.
If its reply is lost: again it notes a later sign of life. ]]
local now = read_clock()
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', int(now - tonumber(ARGV[2])))
redis.call('ZADD', KEYS[1], now, ARGV[1])
local alive = redis.call('ZRANGE', KEYS[1], 0, -1)
table.sort(alive)
return alive
