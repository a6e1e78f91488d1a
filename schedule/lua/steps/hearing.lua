#!lua flags=allow-oom,allow-cross-slot-keys
--[[ hearing notes on a server that a timerd hears its events, and returns the other listeners. In a cluster it also
notes a heartbeat in the data of the server's homes (lib/restored.lua). It asks Redis for the number of subscribers by a
message without content, which the listeners ignore: PUBLISH takes no right that timerd does not have.
KEYS    1  the set of the server's listeners, each "group id"
ARGV    1  the timerd's instance id
        2  its group, which listens to the same
        3  1 if it hears all events of the server now, else 0
        4  the time for which that is believed, in ms
        5  the greatest time by which a sign may be ahead of now, in ms
        6  the channel of claims
        7  in a cluster the prefixes of the server's homes
Returns {the number of subscribers of that channel, or -1 if Redis refuses to tell, the ids of the group's listeners, 0
if the data of a server of a cluster are not compared, else 1, the incarnation of the server if it tells}.
If its reply is lost: again it notes a later sign. ]]

-- The set is kept KEPT times as long as a sign is believed: if its slot moves, nobody looks there.
local KEPT = 10

function steps.hearing(KEYS, ARGV)
  index.begin()
  local now = clock.real()
  local own, believed = ARGV[2] .. ' ' .. ARGV[1], tonumber(ARGV[4])
  if ARGV[3] == '1' then
    redis.call('ZADD', KEYS[1], now, own)
  else
    redis.call('ZREM', KEYS[1], own)
  end
  redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', '(' .. int(now - believed))
  redis.call('ZREMRANGEBYSCORE', KEYS[1], '(' .. int(now + tonumber(ARGV[5])), '+inf')
  redis.call('PEXPIREAT', KEYS[1], int(now + KEPT * believed))
  local all, ids = redis.call('ZRANGE', KEYS[1], 0, -1), {}
  for i = 1, #all do
    local group, id = string.match(all[i], '^(%S*) (.*)$')
    if group == ARGV[2] then ids[#ids + 1] = id end
  end
  local subscribed = redis.pcall(TELL, ARGV[6], '')
  local reply = { type(subscribed) == 'number' and subscribed or -1, ids, 1, '' }
  if CLUSTER then
    local is_compared, incarnation = restored.note_at(ARGV[7])
    reply[3], reply[4] = is_compared and 1 or 0, incarnation or ''
  end
  return reply
end
