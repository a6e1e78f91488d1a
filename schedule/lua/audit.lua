--[[ audit compares one page of the index with the keys. Pending timers whose key was
deleted or lost its TTL are cancelled; those whose TTL changed are rescheduled. It
leaves alone what is due already: that is the claim's. It does not cancel a timer without
a key that is due within SKEW either: on the clock of another server, which had the key
before, it may have been due.
KEYS    1  the partition's prefix
ARGV    1  cursor; 0 begins
        2  how many timers to look at, roughly
        3  1 if keys may have been evicted, so that a key's absence says nothing
Returns {next cursor, 0 at the end, timers looked at, rescheduled, cancelled, again}.
again is 1 if the payloads were too large for one call: then the same page is to be
audited again, for the rest of it.
If its reply is lost: the same page again changes nothing more. ]]

-- By how much the clock of a server that takes over may be behind, in ms.
local SKEW = 2000

open(KEYS[1])
local page = redis.call('ZSCAN', due_key, ARGV[1], 'COUNT', ARGV[2])
local members, rescheduled, cancelled, again = page[2], 0, 0, 0
for i = 1, #members, 2 do
  local key, due = members[i], tonumber(members[i + 1])
  if spent > BUDGET then
    again = 1
    break
  end
  if due > now and string.byte(key) ~= 58 then
    local at = expiry(key)
    local lost = at == -1
    if at == -2 and ARGV[3] ~= '1' and due > now + SKEW then
      lost = not string.find(flags(redis.call('HGET', data_key, key) or 'm:'), 'e', 1, true)
    end
    if lost then
      forget(key)
      cancelled = cancelled + 1
    elseif at and at > now and at ~= due then
      rescheduled = rescheduled + 1
      upsert(key, due, at, MAX_PAYLOAD)
    end
  end
end
return { page[1], #members / 2, rescheduled, cancelled, again }
