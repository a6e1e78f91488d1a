-- Hints of single timers, for the step observe. o is the state of the call and of its present partition:
--   heard       the earliest time of the first of the events, in ms
--   fresh, old  in ms: the greatest age of a tombstone that explains an expired event, and of an event that proves
--               anything about an unknown timer: others may have fired and forgotten the timer since
--   since       the time since which the caller has heard every event of the partition, in ms
--   owed, adopted, rescheduled, cancelled
--               the numbers of timers that became so
--   denied, denied_key
--               the number of hints without an effect because timerd may not read the key, and the key of one

-- count counts a result of contest.follow or trigger.upsert.
function hints.count(o, outcome)
  local name = outcome == 1 and 'adopted' or outcome == 2 and 'rescheduled' or outcome == -1 and 'cancelled'
  if name then o[name] = o[name] + 1 end
end

-- touch makes the index agree with a key that lives. changed says that an event tells of a change.
function hints.touch(o, key, was, at, changed)
  if not at then o.denied, o.denied_key = o.denied + 1, key end
  if not at or at == -2 then return end
  if was and was <= clock.due() and contest.differs(at, was) then
    if contest.judge(key, was, o.since, 0, changed) then o.owed = o.owed + 1 end
    return hints.count(o, contest.follow(key, at, MAX_PAYLOAD))
  end
  if at == -1 then
    if was then hints.count(o, contest.follow(key, at, MAX_PAYLOAD)) end
  elseif was or at > clock.due() or not redis.call('ZSCORE', run.fired, key) then
    hints.count(o, trigger.upsert(key, was, at, MAX_PAYLOAD))
  end
end

-- dismiss drops a key's contested timer in favour of the newer state of the key: had the key run out before, that event
-- would have come first. This holds only if the caller has heard every event since the timer's due time; otherwise
-- dismiss does nothing. The timer is kept until GRACE is over: the event that dismissed it may be older than the
-- contest, and then an expired event follows that nothing else explains, or is missed.
local function dismiss(o, key)
  local due, record, owed = contest.read(key)
  if not due or o.since > due then return end
  contest.take(key)
  local about = int(due) .. (owed and '!' or '') .. '/' .. record
  if not index.put(':d:' .. key, clock.due() + contest.GRACE, about) then account.note(account.REPLACED, 1) end
end

-- confirm makes a key's contested timer a confirmed one.
local function confirm(key)
  local about = redis.call('HGET', run.data, ':?:' .. key)
  index.rewrite(':?:' .. key, (string.gsub(about, '^(%d+!?)%?', '%1', 1)))
end

-- fire_lost fires the timer of an unexplained expired event, whose due time is unknown or had changed. It returns the
-- due time of the key's own timer afterwards, or nil; or as second value true if the event proves nothing.
local function fire_lost(key, was, at, known)
  local due, record = contest.take(key)
  if not due then due, record = contest.take(key, ':d:') end
  if not due then due, record = parked.take(key) end
  if due then
    firings.add(key, due, entry.add_flag(record, 'x'), 0)
  elseif was and at == -2 then
    firings.owe(key, clock.due(), 'x')
    return nil
  elseif known or was and not at then
    return was, true
  else
    record = not was and redis.call('HGET', run.data, key) or 'm:' -- where due has lost it
    local kind = not (not was and index.drop(key)) and account.ADOPTED or nil
    firings.add(key, clock.due(), entry.add_flag(record, 'x'), 0, kind)
  end
  return was
end

-- The functions that follow take in the kinds of hints.

local function audited(o, key, was, at) hints.touch(o, key, was, at) end

local function touched(o, key, was, at)
  dismiss(o, key)
  hints.touch(o, key, was, at, true)
end

local function gone(o, key, was, at)
  if at ~= -2 then return hints.touch(o, key, was, at) end
  local flags = was and was > clock.due() and entry.flags(redis.call('HGET', run.data, key) or 'm:')
  if flags and not string.find(flags, 'e', 1, true) then
    repetition.cancel(key)
    o.cancelled = o.cancelled + 1
  elseif not was and index.drop(key, account.CANCELLED) then -- due has lost it
    repetition.finish(key, repetition.serial_of(key), account.CANCELLED)
  end
end

local function evicted(o, key, was, at)
  if at ~= -2 then return hints.touch(o, key, was, at) end
  if was then index.rewrite(key, entry.add_flag(redis.call('HGET', run.data, key) or 'm:', 'e')) end
end

local function expired(o, key, was, at, known)
  -- A contested timer is an older one than the pending one, and the event is about it. An unconfirmed one has to wait
  -- for the next event if the newer timer is not still to come: then this event is about the newer one.
  local due, record, _, unconfirmed = contest.read(key)
  if unconfirmed and not (was and was > clock.due()) then
    confirm(key)
    due = nil
  end
  if due then
    contest.take(key)
    firings.add(key, due, entry.add_flag(record, 'x'), 0)
  elseif was and was <= clock.due() then
    firings.owe(key, was, 'x')
    was = nil
  else
    local fired, cancelled = firings.age(key), firings.age(':c:' .. key)
    if math.min(fired or math.huge, cancelled or math.huge) <= o.fresh then return hints.touch(o, key, was, at) end
    local proves_nothing
    was, proves_nothing = fire_lost(key, was, at, known)
    if proves_nothing then return hints.touch(o, key, was, at) end
  end
  o.owed = o.owed + 1
  hints.touch(o, key, was, at)
end

local KINDS = { a = audited, t = touched, g = gone, v = evicted, x = expired } -- as observe describes them

-- take takes in one hint. is_large says that there may be large records. An expired event fires a timer that is set
-- aside, unless a tombstone exists or may have gone: then the event may be about an earlier timer of the key.
function hints.take(o, kind, key, is_large)
  if is_large then
    for _, prefix in ipairs({ '', ':?:', ':d:' }) do
      run.spent = run.spent + redis.call('HSTRLEN', run.data, prefix .. key)
    end
  end
  local was, lower, age = index.pending(key), string.lower(kind), clock.real() - o.heard
  local known = kind ~= lower or kind == 'x' and age > o.old
  if not known or was or redis.call('HEXISTS', run.data, ':?:' .. key) == 1
    or lower == 'x' and age < clock.REMEMBER and not firings.age(key) and not firings.age(':c:' .. key)
    and parked.first(key) then
    KINDS[lower](o, key, was, ttl.try(key), known)
  end
end
