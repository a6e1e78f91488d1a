-- Members of due other than keys: contested and dismissed timers, retries beside newer timers, and timers that were set
-- aside.

-- parse returns the name and the key of a member of due that is no key, and otherwise nil.
function special.parse(member)
  if string.byte(member) == 58 then return string.match(member, '^:([^:]*):(.*)$') end
end

-- rescheduled takes in the key of a timer set aside whose TTL was changed before it ran out.
local function rescheduled(key, at, record)
  local current = index.pending(key) and redis.call('HGET', run.data, key)
  local serial = current and redis.call('ZSCORE', run.prefix .. 'repeat', key)
  if not current then
    index.rewrite(key, record)
  elseif serial and entry.is_occurrence_of(record, serial) then -- the key was taken in as a single timer
    index.rewrite(key, entry.with_value(record, current))
  end
  ttl.follow(key, at)
  if not index.redate(key, at) then account.note(account.REPLACED, 1) end
end

-- claim_aside looks again at a timer that was set aside. If its key can be read now and lives on, there are two cases:
-- its TTL was changed before it ran out, or it was set again since. In the ms in which a key runs out it may be that of
-- a newer timer that has been claimed, and says nothing.
local function claim_aside(t, member, key, due)
  run.spent = run.spent + redis.call('HSTRLEN', run.data, member)
  local at = ttl.try(key)
  if not at or at >= 0 and at <= clock.due() then return index.redate(member, parked.next_look(due)) end
  local record = redis.call('HGET', run.data, member) or 'm:'
  beside.forget(member, key)
  if at == -2 or parked.set_again(key, due, record) then
    taken.add_made(t, firings.add, key, due, record)
    if at ~= -2 then contest.follow(key, at, MAX_PAYLOAD) end
  elseif at == -1 then
    account.note(account.CANCELLED, 1)
    repetition.cancel(key)
    t.cancelled = t.cancelled + 1
  else
    t.rescheduled = t.rescheduled + 1
    rescheduled(key, at, record)
  end
end

-- claim_contested ends the wait of a contested or dismissed timer. No expired event has come. So nothing is owed,
-- unless the caller may have missed the event: then contest.check_ran_out's answer counts.
local function claim_contested(t, member, name, key)
  run.spent = run.spent + redis.call('HSTRLEN', run.data, member)
  local was, record, owed = contest.read(key, ':' .. name .. ':')
  local is_owed = owed and was < t.since
  index.forget(member, not is_owed and account.REPLACED or nil)
  if is_owed then taken.add_made(t, firings.add, key, was, record) end
end

-- claim_retry claims a retry that waited beside a newer timer.
local function claim_retry(t, member, key, was)
  local record = redis.call('HGET', run.data, member) or 'm:'
  beside.forget(member, key)
  local at = entry.attempt(record) == '1' and ids.free_due(key, was) or was
  if at > clock.due() and at ~= was then return beside.add(key, at, '1', record) end
  taken.add_made(t, firings.add_retry, key, at, record)
end

-- claim claims a member of due that is no key, by what parse has returned.
function special.claim(t, member, due, name, key)
  if name == '?' or name == 'd' then return claim_contested(t, member, name, key) end
  local aside, was = string.match(name, '^(s?)(%d+)')
  was = tonumber(was or due)
  if aside == 's' then claim_aside(t, member, key, was) else claim_retry(t, member, key, was) end
end
