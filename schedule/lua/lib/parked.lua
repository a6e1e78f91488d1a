-- A due timer whose key timerd may not read is set aside, so that it does not stop others: it waits among the retries
-- beside newer timers, with an s before its name, and is looked at again and again, with growing pauses. The expired
-- event of its key fires it at once.

-- The pauses, in ms: a part of the time since the timer was due.
parked.SHORTEST_PAUSE, parked.LONGEST_PAUSE, parked.PAUSE_PART = 1000, 60000, 4

-- parked.next_look returns the time of the next look at a timer due at a time.
function parked.next_look(due)
  local pause = math.floor((clock.due() - due) / parked.PAUSE_PART)
  return clock.due() + math.min(math.max(pause, parked.SHORTEST_PAUSE), parked.LONGEST_PAUSE)
end

-- park sets a pending timer aside. It returns false, and has done nothing, if there are too many of this key.
function parked.park(key, due)
  local record = redis.call('HGET', run.data, key) or 'm:'
  run.spent = run.spent + #record
  if not beside.add(key, due, entry.attempt(record), record, nil, 's', parked.next_look(due)) then return false end
  index.forget(key)
  return true
end

-- parked.set_again reports whether the key of a timer set aside ran out and was set again. Without events
-- contest.check_ran_out says so. But timer_set, which wrote a mark, has not made this timer owed: it is in the schedule
-- under another name. If the key has its mark and was taken in without a payload, its TTL was changed: it gets its
-- payload back.
function parked.set_again(key, due, record)
  local current = index.pending(key) and redis.call('HGET', run.data, key)
  if not current or trigger.record_of(key, MAX_PAYLOAD) then return contest.check_ran_out(key, due, record) end
  if current ~= 'm:' then return true end
  index.rewrite(key, record)
  return false
end

-- parked.first returns the member of due of the first timer of a key that is set aside, or nil.
function parked.first(key)
  local first = owing.key_prefix(key)
  local name = redis.call('ZRANGE', run.prefix .. 'beside', '[' .. first .. 's', '(' .. first .. 't', 'BYLEX', 'LIMIT',
    0, 1)[1]
  return name and beside.member(name, key)
end

-- parked.take removes the first timer of a key that is set aside from the schedule. It returns its due time and record,
-- or nil.
function parked.take(key)
  local member = parked.first(key)
  if not member then return nil end
  local record = redis.call('HGET', run.data, member) or 'm:'
  beside.forget(member, key)
  return tonumber(string.match(member, '^:s(%d+)')), record
end
