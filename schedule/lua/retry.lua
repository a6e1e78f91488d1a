--[[ retry sets a timer again after a failed attempt: once per event id, however often
it is called. If the key was set again, both timers are kept: the retry waits beside the
newer one. If the retry is due already, it is owed.
KEYS    1  the partition's prefix
ARGV    1  id of the event whose attempt failed
        2  the timer's key
        3  when the retry is due
        4  its attempt
        5  "m" or "l" if there is no payload, else empty
        6  payload
Returns the due time, or -1 if this event's retry was set before.
If its reply is lost: a second call returns -1. ]]
open(KEYS[1])
if redis.call('ZADD', retried_key, 'NX', now, ARGV[1]) == 0 then return -1 end
local key, due, record = ARGV[2], math.max(tonumber(ARGV[3]), 1), ARGV[4] .. ARGV[5] .. ':' .. ARGV[6]
if due <= now then
  local ref = fire_retry(key, due, record, 0)
  announce(0)
  return tonumber(string.match(ref, '^%d+'))
end
local was = pending(key)
if was == due then due = due + 1 end
if not was and redis.call('EXISTS', key) == 0 then
  redis.call('SET', key, mark(key), 'PXAT', int(due))
  redis.call('ZADD', due_key, due, key)
  redis.call('HSET', data_key, key, record)
  announce_first(key, due)
  return due
end
local name, member
repeat
  name = int(due) .. '.' .. ARGV[4]
  member = ':' .. name .. ':' .. key
  local added = redis.call('ZADD', due_key, 'NX', due, member)
  if added == 0 then due = due + 1 end
until added == 1
redis.call('HSET', data_key, member, record)
redis.call('HSET', data_key, ':b:' .. key, (names_beside(key) or '') .. name .. ' ')
announce_first(member, due)
return due
