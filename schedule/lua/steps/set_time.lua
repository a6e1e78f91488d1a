#!lua flags=allow-oom
--[[ set_time moves one pending timer, as it was found, to another due time: with its payload, attempt, options and
repetition. One with a trigger key keeps it, with another TTL; one that is to be due now is owed, and its trigger key
goes. A repetition that is to be due now stays as it is, and a single firing of its payload is owed beside it. Nothing
is done to a timer that was changed since.
KEYS    1  the partition's prefix
ARGV    1  the timer's key
        2  when it was found to be due
        3  empty, or of one that waits beside another, "." and its attempt
        4  when it is to be due; a time that is over stands for now
        5  a text that no other call has: so a repeated call adds no second firing
Returns {outcome, when it is due}. The outcome is one of
  moved    it is due then, or a little later if another timer of the key has that time
  toolate  it is owed or firing, or has fired
  held     it is due and held
  changed  it is not there as it was found, or its key is not: it was set anew, cancelled or moved
  denied   timerd may not write the trigger key
and only moved has changed anything.
If its reply is lost: again it returns moved if the timer is still to be due then; else toolate or changed. ]]

local MOST_AHEAD = 315360000000 -- ms, as MAX_DELAY in arguments.lua

-- member_at returns the member of due of the timer if it is due at a time.
local function member_at(t, due) return t.waiting == '' and t.key or ':' .. int(due) .. t.waiting .. ':' .. t.key end

-- missing returns the outcome for a timer that is not pending as it was found.
local function missing(t)
  local target = t.target
  if target > clock.due() and index.pending(member_at(t, target)) == target then return { 'moved', target } end
  -- is_there reports whether a ref is of the time at which the timer was found to be due.
  local function is_there(ref) return tonumber(string.match(ref, '^%d+')) == t.found end
  for _, ref in ipairs(firings.given(t.key)) do
    local state, _, score = states.of(ref)
    if state and is_there(ref) and not string.find(ref, '^%d+:0:') then
      local is_held = state == 'held' or state == 'owed' and states.holding()(t.key, scores.due_of_free(ref, score))
      return { is_held and 'held' or 'toolate' }
    end
  end
  local fired, cancelled = firings.age(t.key), firings.age(':u:' .. t.key)
  local was_fired = (t.waiting ~= '' or not index.pending(t.key)) and fired and not (cancelled and cancelled <= fired)
  return { (was_fired or firings.claimed(t.key, is_there)) and 'toolate' or 'changed' }
end

-- free_time returns a time or, if that is taken, a little later one: an earlier one might be too early.
local function free_time(key, due, attempt, own_stays)
  local at, tries = due, 0
  while ids.is_taken(key, at, attempt, own_stays) do
    tries = tries + 1
    at = due + beside.jump(tries)
  end
  return at
end

-- owe_now makes a timer that has left due owed. If the present ms is taken, it is claimed at its due time, as if given
-- back until then. kind is as in index.put.
local function owe_now(key, due, record, kind)
  local ref = firings.add(key, due, entry.renewed(record), 0, kind)
  if due > clock.due() then index.rescore({ scores.at(due, PAUSED), ref }) end
  wake.at(due > clock.due() and due or 0)
  return { 'moved', due }
end

-- move_beside moves a timer that waits beside another.
local function move_beside(t)
  local member = member_at(t, t.found)
  local record = redis.call('HGET', run.data, member) or 'm:'
  local due = free_time(t.key, math.max(t.target, clock.due()), string.sub(t.waiting, 2), true)
  beside.forget(member, t.key)
  if t.target <= clock.due() then return owe_now(t.key, due, record) end
  beside.put(t.key, int(due) .. t.waiting, due, record)
  wake.if_first(member_at(t, due), due)
  return { 'moved', due }
end

-- fire_extra adds a firing with the payload of an occurrence, and leaves the repetition alone.
local function fire_extra(t, record)
  local called = ':x:' .. t.call
  local before = redis.call('ZSCORE', run.fired, called)
  if before then return { 'moved', tonumber(before) } end
  local attempt, marks, options, colon = string.match(record, '^(%d*)(%a*)([^:]*)()')
  record = attempt .. string.gsub(marks, 'p', '') .. string.gsub(options, ';[RNA]=[^;]*', '') .. string.sub(record,
    colon)
  local due = free_time(t.key, clock.due(), attempt, true)
  redis.call('ZADD', run.fired, int(due), called)
  return owe_now(t.key, due, record, account.SET)
end

-- move_own moves the key's own timer. If the index has not heard of a change yet, the key is right. The user's key
-- comes first: if timerd may not write it, nothing has happened.
local function move_own(t, at)
  local key, target = t.key, t.target
  local record = redis.call('HGET', run.data, key) or 'm:'
  local has_key = at > clock.due()
  if not has_key and not (at == -2 and entry.may_be_absent(record)) then return { 'changed' } end
  local current = has_key and trigger.record_of(key, MAX_PAYLOAD)
  if current then record = trigger.follow(record, current, index.pending(key) == at) end
  if has_key then record = entry.renewed(record) end
  if target <= clock.due() and entry.is_repeating(record) then return fire_extra(t, record) end
  local due = free_time(key, math.max(target, clock.due()), entry.attempt(record))
  if target > clock.due() then
    if has_key and not ttl.try_move(key, due) then return { 'denied' } end
    index.put(key, int(due), record)
    wake.if_first(key, due)
    return { 'moved', due }
  end
  if has_key and redis.pcall('UNLINK', key) ~= 1 then return { 'denied' } end
  index.forget(key)
  return owe_now(key, due, record)
end

function steps.set_time(KEYS, ARGV)
  index.open(KEYS[1])
  local t = { key = ARGV[1], found = tonumber(ARGV[2]), waiting = ARGV[3], target = tonumber(ARGV[4]), call = ARGV[5] }
  if t.target - clock.due() > MOST_AHEAD then
    return redis.error_reply('ERR timerd: the time is over 10 years ahead')
  end
  local was = index.pending(member_at(t, t.found))
  local at = t.waiting == '' and was and ttl.try(t.key) or nil
  if was and was > clock.due() and (at or -1) > clock.due() then was = at end -- the index has not heard of it yet
  if was ~= t.found then return missing(t) end
  if t.found <= clock.due() then return { states.holding()(t.key, t.found) and 'held' or 'toolate' } end
  if t.waiting ~= '' then return move_beside(t) end
  if not at then return { 'denied' } end
  return move_own(t, at)
end
