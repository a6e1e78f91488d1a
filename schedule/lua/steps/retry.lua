#!lua flags=allow-oom
--[[ retry sets a timer again, after a failed attempt or because it was postponed or is replayed: once per event id,
however often it is called. If the key was set again, both timers are kept: the retry waits beside the newer one. If the
retry is due already, it is owed. As attempt 1 it may be due a little later than requested, to have an id of its own.
KEYS    1  the partition's prefix
ARGV    1  id of the event that is followed
        2  the timer's key
        3  when the retry is due
        4  its attempt
        5  "m" or "l" if there is no payload, then its options, as in a record
        6  payload
Returns the due time; -1 if this event's retry was set before; or -2, and nothing has changed, if too many retries wait
beside this key's newer timer.
If its reply is lost: a second call returns -1. ]]

function steps.retry(KEYS, ARGV)
  index.open(KEYS[1])
  local retried_key = run.prefix .. 'retried'
  if redis.call('ZSCORE', retried_key, ARGV[1]) then return -1 end
  local key, due, record = ARGV[2], math.max(tonumber(ARGV[3]), 1), ARGV[4] .. ARGV[5] .. ':' .. ARGV[6]
  local member
  if ARGV[4] == '1' then
    -- A first firing leaves no tombstone of its id. But the last claim of the key left one of the key, and timers
    -- claimed by then were due by then.
    local last = math.min(tonumber(redis.call('ZSCORE', run.fired, key) or 0), clock.real())
    if due <= last and due > clock.real() - clock.REMEMBER then due = last + 1 end
    due = ids.free_due(key, due)
  end
  if due <= clock.due() then
    due = tonumber(string.match(firings.add_retry(key, due, record, 0, account.RETRIED), '^%d+'))
  else
    due, member = beside.rearm(key, due, ARGV[4], record, account.RETRIED)
    if not due then return -2 end
  end
  redis.call('ZADD', retried_key, clock.real(), ARGV[1])
  if member then
    apps.announce(apps.unknown(apps.of(key)))
    wake.if_first(member, due)
  else
    wake.at(0)
  end
  return due
end
