#!lua flags=allow-oom
--[[ heartbeat notes a sign of life of a timerd, with its description, and moves the silent to a set of their own, where
they stay until they are heard of again, for a day at most. A timerd that was itself without an answer of late moves
nobody: after an outage of Redis all seem silent to the first one. A sign of life of later than now is of a clock that
was ahead, and forgotten: a living timerd sends the next one.
KEYS    1  the set of timerds at work: the keys themselves and not their partition's
           prefix, because the call may follow them with ASKING while their slot moves
        2  the hash of their descriptions
        3  the hash of their counts
        4  the set of timerds unable to publish
        5  the set of the silent, scored by their last sign of life
ARGV    1  the timerd's instance id
        2  the silence after which one is dead, in ms
        3  its description, nearly always the same
        4  its counts, or an empty string to leave those
        5  1 if it cannot publish now, else 0
        6  the greatest time by which a sign of life may be ahead of now, in ms
        7  1 if each of its heartbeats was answered for as long as makes another one dead, else 0
        8  argument 9 of claim.lua
Returns two lists of ids, each sorted: of the living able to publish, and of the others; then 1 if the others had found
this timerd silent, else 0.
If its reply is lost: again it notes a later sign of life. ]]

-- Limit of the kept descriptions. If there are more, somebody else has written there: all are forgotten, and the
-- timerds send theirs again.
local MOST = 1000
-- Limits of the kept silent timerds, the last seen ones: number, and time in ms.
local MOST_SILENT, SILENT_FOR = 100, 24 * 3600 * 1000

-- move_silent moves the silent from the timerds at work to their own set. It returns their number.
local function move_silent(working, own, now, dead)
  local silent = redis.call('ZRANGE', working, dead, '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, MOST_SILENT, 'WITHSCORES')
  for i = 1, #silent, 2 do redis.call('ZADD', own, silent[i + 1], silent[i]) end
  if #silent == 0 then return 0 end
  redis.call('ZREMRANGEBYRANK', own, 0, -MOST_SILENT - 1)
  redis.call('ZREMRANGEBYSCORE', own, '-inf', int(now - SILENT_FOR))
  return redis.call('ZREMRANGEBYSCORE', working, '-inf', dead)
end

-- forget_dead takes the dead out of a hash.
local function forget_dead(hash, alive)
  if redis.call('HLEN', hash) > MOST then return redis.call('UNLINK', hash) end
  local here, gone = {}, {}
  for i = 1, #alive do here[alive[i]] = true end
  local said = redis.call('HKEYS', hash)
  for i = 1, #said do
    if not here[said[i]] then gone[#gone + 1] = said[i] end
  end
  if #gone > 0 then redis.call('HDEL', hash, unpack(gone)) end
end

function steps.heartbeat(KEYS, ARGV)
  index.begin()
  if not CLUSTER then
    index.enter(PREFIX .. SINGLE .. SUFFIX)
    pcall(restored.note, tonumber(ARGV[8])) -- who lives is known also where somebody has written to the index
  end
  local now = clock.real()
  local dead, ahead = int(now - tonumber(ARGV[2])), '(' .. int(now + tonumber(ARGV[6]))
  local changes = redis.call('ZREMRANGEBYSCORE', KEYS[1], ahead, '+inf') + redis.call('ZADD', KEYS[1], now, ARGV[1])
  if ARGV[7] == '1' then changes = changes + move_silent(KEYS[1], KEYS[5], now, dead) end
  if redis.call('HSETNX', KEYS[2], ARGV[1], ARGV[3]) == 0 and redis.call('HGET', KEYS[2], ARGV[1]) ~= ARGV[3] then
    redis.call('HSET', KEYS[2], ARGV[1], ARGV[3])
  end
  if ARGV[4] ~= '' then redis.call('HSET', KEYS[3], ARGV[1], ARGV[4]) end
  local alive = redis.call('ZRANGE', KEYS[1], '(' .. dead, '+inf', 'BYSCORE')
  if changes > 0 then
    forget_dead(KEYS[2], alive)
    forget_dead(KEYS[3], alive)
  end
  table.sort(alive)

  if ARGV[5] == '1' then
    redis.call('ZADD', KEYS[4], now, ARGV[1])
  else
    redis.call('ZREM', KEYS[4], ARGV[1])
  end
  redis.call('ZREMRANGEBYSCORE', KEYS[4], '-inf', dead)
  redis.call('ZREMRANGEBYSCORE', KEYS[4], ahead, '+inf')
  local cannot, able, unable = redis.call('ZMSCORE', KEYS[4], unpack(alive)), {}, {}
  for i = 1, #alive do
    local list = cannot[i] and unable or able
    list[#list + 1] = alive[i]
  end
  return { able, unable, redis.call('ZREM', KEYS[5], ARGV[1]) }
end
