-- The wait of a contested timer for the expired event that would make it owed, in ms.
contest.GRACE = 10000

-- contest.differs reports whether a living key runs out at another time (at) than its due time in the index (was). In
-- the ms of its own due time a key still exists. A key that was set again, and runs out in this very ms, may exist too.
function contest.differs(at, was) return at ~= -2 and at ~= was end

-- The greatest error of the time of a key's last access, in ms. Redis counts whole seconds by a clock of its own,
-- which it sets ten times a second once it has answered everybody. After two seconds in which it did nothing, a key
-- looks that much older.
local ACCESS = 1000 + 2000

-- contest.check_ran_out reports whether a key ran out at its due time in the index, and was set again since. It judges
-- without events, by three rules for keys that did not run out:
--   the key was last accessed before the due time, by more than ACCESS;
--   it has the mark, because timer_set makes the older timer owed by itself;
--   its value is still the same.
-- In all other cases it says yes: better one firing too many than one lost.
function contest.check_ran_out(key, due, record)
  local idle = redis.pcall('OBJECT', 'IDLETIME', key)
  if type(idle) == 'number' and clock.due() - idle * 1000 + ACCESS < due then return false end
  local current = trigger.record_of(key, MAX_PAYLOAD)
  return current ~= nil and entry.value(current) ~= entry.value(record)
end

-- contest.judge decides about a timer that the index has due while its key lives on, with another TTL or with none.
-- There are two cases:
--   1. The key changed before the due time, and we have not heard of it. Nothing is owed.
--   2. The key ran out, which is owed, and was set again.
-- In case 2 Redis sent an expired event before any other. So if the caller has heard every event since the due time, it
-- is case 1, unless that event is still on its way. The old timer therefore stays, contested, until GRACE is over. If
-- the event comes, the timer is owed after all.
--   A caller that may have missed events goes by contest.check_ran_out. So does everybody if the key was gone before
-- its due time, evicted for example: then no expired event will come. It is asked now in any case: later the newer
-- timer may have fired or been cancelled, and then the key says nothing any more.
--   since is the time since which the caller has heard every event. lease_end is the end of the claimer's lease, or 0.
-- unconfirmed says that an event of a change has led here: most probably that of this very change, and then no expired
-- event is on its way. It returns the ref of an owed firing, or nil. Afterwards the caller takes in the key's own state
-- (contest.follow), which is another timer if this one is contested; own_is_new says that the caller sets that one.
function contest.judge(key, due, since, lease_end, unconfirmed, own_is_new)
  local record = redis.call('HGET', run.data, key) or 'm:'
  local owed = contest.check_ran_out(key, due, record)
  -- If one of this key is contested already, events are late by more than a timer's life.
  local about = int(due) .. (owed and '!' or '') .. (unconfirmed and '?' or '') .. '/' .. record
  local expires = not string.find(entry.flags(record), '[eu]')
  if expires and due >= since and redis.call('HEXISTS', run.data, ':?:' .. key) == 0 then
    index.put(':?:' .. key, clock.due() + contest.GRACE, about, not own_is_new and account.ADOPTED or nil)
    if own_is_new then index.forget(key) end
    meta.note_contest()
    return nil
  end
  if not owed then return nil end
  return firings.move_one(key, due, record, lease_end)
end

-- contest.read returns the due time and record of a key's contested timer, whether it counts as run out, and whether it
-- is unconfirmed; or nil. With ':d:' as name_prefix it reads the dismissed one.
function contest.read(key, name_prefix)
  local about = redis.call('HGET', run.data, (name_prefix or ':?:') .. key) or ''
  local due, owed, unconfirmed, at = string.match(about, '^(%d+)(!?)(%??)/()')
  return tonumber(due), at and string.sub(about, at), owed == '!', unconfirmed == '?'
end

-- contest.take is contest.read, and takes the contested timer out of the schedule.
function contest.take(key, name_prefix)
  local due, record, owed = contest.read(key, name_prefix)
  if due then index.forget((name_prefix or ':?:') .. key) end
  return due, record, owed
end

-- follow takes in the state of a key that lives on while the index has it due, after contest. It returns upsert's
-- result, or -1 for a cancelled timer.
function contest.follow(key, at, max)
  if at == -1 then
    repetition.cancel(key)
    return -1
  end
  return trigger.upsert(key, index.pending(key), at, max)
end
