#!lua flags=allow-oom
--[[ set_time has one pending timer be due at another time, as it was found: with its payload,
attempt, options and repetition. One with a trigger key keeps it, with another TTL; one that is to
be due now is owed, and its trigger key goes. A repetition that is to be due now stays as it is, and
a single firing of its payload is owed beside it. Nothing is done to a timer that was changed since.
KEYS    1  the partition's prefix
ARGV    1  the timer's key
        2  when it was found to be due
        3  empty, or of one that waits beside another, "." and its attempt
        4  when it is to be due; a time that is over stands for now
        5  a text that no other call has: so a repeated call adds no second firing
Returns {what came of it, when it is due}. What came of it is one of
  moved    it is due then, or a little later if another timer of the key has that time
  toolate  it is owed or firing, or has fired
  held     it is due and held
  changed  it is not there as it was found, or its key is not: it was set anew, cancelled or moved
  denied   timerd may not write the trigger key
and but for the first nothing was changed.
If its reply is lost: again it returns moved if the timer is still to be due then; else toolate or
changed. ]]

local MOST_AHEAD = 315360000000 -- ms, as MAX_DELAY in arguments.lua

-- put has the timer be due at a time that lies ahead.
local function put(member, due, record)
  index.note_size(record)
  redis.call('ZADD', run.due, int(due), member)
  redis.call('HSET', run.data, member, record)
  wake.if_first(member, due)
  return { 'moved', due }
end

function steps.set_time(KEYS, ARGV)
  index.open(KEYS[1])
  local key, found, waiting, target = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
  if target - run.now > MOST_AHEAD then return redis.error_reply('ERR timerd: the time is over 10 years ahead') end

  -- member_at returns the member of due of the timer if it is due at a time.
  local function member_at(due) return waiting == '' and key or ':' .. int(due) .. waiting .. ':' .. key end

  -- is_there tells of a ref that it is of the time at which the timer was found to be due.
  local function is_there(ref) return tonumber(string.match(ref, '^%d+')) == found end

  -- missing says what may have become of a timer that is not pending as it was found.
  local function missing()
    if target > run.now and index.pending(member_at(target)) == target then return { 'moved', target } end
    for _, ref in ipairs(firings.given(key)) do
      local state, _, score = states.of(ref)
      if state and is_there(ref) and not string.find(ref, '^%d+:0:') then
        local is_held = state == 'held' or state == 'owed' and states.holding()(key, scores.due_of_free(ref, score))
        return { is_held and 'held' or 'toolate' }
      end
    end
    local fired, cancelled = firings.age(key), firings.age(':u:' .. key)
    local was_fired = (waiting ~= '' or not index.pending(key)) and fired and not (cancelled and cancelled <= fired)
    return { (was_fired or firings.claimed(key, is_there)) and 'toolate' or 'changed' }
  end

  -- free_time returns when a timer can be due at a time or, where that is taken, a little later: not
  -- earlier, because that might be too early.
  local function free_time(due, attempt, own_stays)
    local at, tries = due, 0
    while firings.is_taken(key, at, attempt, own_stays) do
      tries = tries + 1
      at = due + beside.jump(tries)
    end
    return at
  end

  -- owe_now has a timer that is out of due be owed. Where the present ms is taken, it is not to be
  -- claimed before its due time, as if it had been given back.
  local function owe_now(due, record)
    index.note_size(record)
    local ref = firings.add(key, due, entry.renewed(record), 0)
    if due > run.now then redis.call('ZADD', run.firing, scores.at(due, PAUSED), ref) end
    wake.at(due > run.now and due or 0)
    return { 'moved', due }
  end

  -- move_beside moves a timer that waits beside another.
  local function move_beside()
    local member = member_at(found)
    local record = redis.call('HGET', run.data, member) or 'm:'
    local attempt = string.sub(waiting, 2)
    local due = free_time(math.max(target, run.now), attempt, true)
    beside.forget(member, key)
    if target <= run.now then return owe_now(due, record) end
    redis.call('ZADD', run.prefix .. 'beside', '0', owing.key_prefix(key) .. int(due) .. waiting)
    return put(member_at(due), due, record)
  end

  -- fire_extra adds a firing with the payload of an occurrence, and leaves the repetition alone.
  local function fire_extra(record)
    local called = ':x:' .. ARGV[5]
    local before = redis.call('ZSCORE', run.fired, called)
    if before then return { 'moved', tonumber(before) } end
    local attempt, marks, options, colon = string.match(record, '^(%d*)(%a*)([^:]*)()')
    record = attempt .. string.gsub(marks, 'p', '') .. string.gsub(options, ';[RNA]=[^;]*', '') .. string.sub(record, colon)
    local due = free_time(run.now, attempt, true)
    redis.call('ZADD', run.fired, int(due), called)
    return owe_now(due, record)
  end

  -- move_own moves the timer that the key itself stands for. What the key says counts where the
  -- index has not heard of it yet. The user's key comes first: if timerd may not write it, nothing
  -- has happened.
  local function move_own(at)
    local record = redis.call('HGET', run.data, key) or 'm:'
    local has_key = at > run.now
    if not has_key and not (at == -2 and entry.may_be_absent(record)) then return { 'changed' } end
    local current = has_key and trigger.record_of(key, MAX_PAYLOAD)
    if current then record = entry.is_repeating(record) and entry.with_value(record, current) or current end
    if has_key then record = entry.renewed(record) end
    if target <= run.now and entry.is_repeating(record) then return fire_extra(record) end
    local due = free_time(math.max(target, run.now), entry.attempt(record))
    if target > run.now then
      if has_key and redis.pcall('PEXPIREAT', key, int(due)) ~= 1 then return { 'denied' } end
      return put(key, due, record)
    end
    if has_key and redis.pcall('UNLINK', key) ~= 1 then return { 'denied' } end
    index.forget(key)
    return owe_now(due, record)
  end

  local was = index.pending(member_at(found))
  local at = waiting == '' and was and ttl.try(key) or nil
  if was and was > run.now and (at or -1) > run.now then was = at end -- the index has not heard of it yet
  if was ~= found then return missing() end
  if found <= run.now then return { states.holding()(key, found) and 'held' or 'toolate' } end
  if waiting ~= '' then return move_beside() end
  if not at then return { 'denied' } end
  return move_own(at)
end
