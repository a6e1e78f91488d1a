-- contested_by returns the member of a key's contested timer, or with ':d:' of the dismissed one, if it was due within
-- some time; else nil.
local function contested_by(earliest, latest, key, name_prefix)
  local due = contest.read(key, name_prefix)
  return due and due >= earliest and due <= latest and name_prefix .. key or nil
end

-- take_beside cancels the members beside a key's timer that are due within some time. It returns their number, and
-- whether one of them was set aside.
local function take_beside(earliest, latest, key, members)
  local taken, aside = 0, false
  local function is_meant(text)
    local due = tonumber(text or 0)
    return due >= earliest and due <= latest
  end
  for _, member in ipairs(members) do
    if is_meant(string.match(member, '^:s?(%d+)')) then
      beside.forget(member, key, account.CANCELLED)
      taken, aside = taken + 1, aside or string.sub(member, 2, 2) == 's'
    end
  end
  return taken, aside
end

local WANTED = 'timer_cancel takes no arguments, or UNTIL unix-ms, then optionally FROM unix-ms'
local AGAIN = 'AGAIN timerd has cancelled %d owed timers of this key, and there are more: call again'

-- read_bounds returns the first and last due time that timer_cancel is to cancel, by its arguments; or nil.
local function read_bounds(args)
  if #args == 0 then return -math.huge, math.huge end
  local latest, earliest = arguments.word(args[1]) == 'UNTIL' and arguments.parse_integer(args[2]), -math.huge
  if #args > 2 then earliest = #args == 4 and arguments.word(args[3]) == 'FROM' and arguments.parse_integer(args[4]) end
  if latest and earliest then return earliest, latest end
end

-- missing_right returns an error reply if the caller may not cancel. Of a pending timer alone the first write is DEL.
local function missing_right(key, is_alone)
  local may = redis.acl_check_cmd
  return not (may('ZREM', run.due, '') and may('HDEL', run.data, '')) and rights.missing_all(rights.OF.forgetting)
    or not is_alone and (rights.missing('DEL', key, 'the key') or rights.missing_all(rights.OF.cancel))
end

-- leave_tombstones leaves the tombstones of a cancellation. The expired event of a timer that had run out, or was set
-- aside, may be still to come. fired says that a timer of the key has lately fired.
local function leave_tombstones(key, may_have_run_out, fired)
  if may_have_run_out then redis.call('ZADD', run.fired, clock.real(), ':c:' .. key) end
  if fired then redis.call('ZADD', run.fired, clock.real(), ':u:' .. key) end
end

--[[ timer_cancel KEY [UNTIL unix-ms, then optionally FROM unix-ms]
Cancels all timers of a key that nobody has claimed: pending, held, owed, and retries. It ends its repetition, also if
an occurrence of that is firing, and deletes the trigger key. A key without a TTL is not a trigger key and stays. With
UNTIL it cancels the timers due at that time or before, and the others stay, with the trigger key: so a caller cancels
the timers of a list, and none set or armed since. FROM excludes the timers due before that time: so of several timers
of a key one can be cancelled.
Returns "cancelled"; "fired" if none was cancelled and one is firing, or fired within the last half minute at least, or
became a dead letter instead, or is to and the letter may be stored; or "unknown". An error says that so many were owed
that some are left: then the call is to be repeated.
If its reply is lost: a second call answers "unknown" for timers that the first one cancelled. ]]
local function timer_cancel(keys, args)
  local earliest, latest = read_bounds(args)
  if not earliest then return arguments.fault(WANTED) end
  local key, refusal = arguments.open_one_key('timer_cancel', keys, {})
  if refusal then return refusal end
  local was, at, now = index.pending(key), ttl.read(key), clock.due()
  -- If the index has not heard of a change yet, the key is right. Then the record stays too: it may have the payload of
  -- the changed key.
  local due = at >= now and at or was or 0
  local stays = due > latest or due < earliest
  if stays then was = nil end
  local serial, fired = repetition.serial_of(key), firings.age(key)
  local members, refs = beside.members(key, 0, beside.MOST), firings.given(key)
  local contested, dismissed = contested_by(earliest, latest, key, ':?:'), contested_by(earliest, latest, key, ':d:')
  local more_there = serial or fired or members[1] or refs[1] or contested or dismissed
  refusal = missing_right(key, was and was > now and at > now and not more_there)
  if refusal then return refusal end
  if stays then serial = nil end
  repetition.finish(key, serial, account.CANCELLED)
  local deleted = not stays and at ~= -1 and redis.call('DEL', key) == 1
  local beside_many, aside = take_beside(earliest, latest, key, members)
  -- A timer that may have run out before the key was set again is cancelled with it. A dismissed one most probably
  -- never ran out, so it alone is no timer to cancel.
  if contested then index.forget(contested, account.CANCELLED) end
  local owed, more, given = states.cancel_owed(key, refs, earliest, latest)
  -- In the very ms of its due time a claimed timer's key is still there.
  if not (was or contested or beside_many > 0 or owed > 0 or serial and serial < 0
    or deleted and (at > now or not fired)) then
    local cancelled = firings.age(':u:' .. key)
    return (given or serial or fired and not (cancelled and cancelled <= fired)) and 'fired' or 'unknown'
  end
  if not stays then index.forget(key, account.CANCELLED) end
  if dismissed then index.forget(dismissed, account.REPLACED) end
  leave_tombstones(key, contested or dismissed or aside or was and (not deleted or was <= now), fired)
  if more then return redis.error_reply(string.format(AGAIN, owed)) end
  calls.count('timer_cancel')
  return 'cancelled'
end

redis.register_function { function_name = 'timer_cancel', callback = bound(timer_cancel), description = COUNTS,
  flags = { 'allow-oom' } }
