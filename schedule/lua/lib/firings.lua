-- Firings, and how pending timers become firings.

-- firings.add_tombstones adds the tombstones of a firing, with its due time in text, to the arguments of a ZADD.
function firings.add_tombstones(arguments, key, due, attempt, record)
  local n = #arguments
  arguments[n + 1], arguments[n + 2] = clock.real_text(), key
  local id = ids.tombstone(key, due, attempt, record)
  if id then arguments[n + 3], arguments[n + 4] = int(clock.real() + clock.REMEMBER), id end
end

-- Timers moved or taken in by one group of commands. More would save little, and payloads are read before it is known
-- whether there is room for them.
firings.GROUP = 32

-- firings.age returns the age of a tombstone, or nil.
function firings.age(tombstone)
  local at = tonumber(redis.call('ZSCORE', run.fired, tombstone) or nil)
  return at and clock.real() - at
end

-- firings.add adds a firing: claimed until lease_end, or owed if that is 0. If another firing of the same due time has
-- its ref, this one moves back by 1 ms, as forward might be too early. kind is as in index.put. It returns the ref.
function firings.add(key, due, record, lease_end, kind)
  local attempt = entry.attempt(record)
  local ref = int(due) .. ':' .. attempt .. ':' .. key
  while not index.fire_if_free(ref, lease_end, record, kind) do
    due = due - 1
    ref = int(due) .. ':' .. attempt .. ':' .. key
  end
  local tombstones = {}
  firings.add_tombstones(tombstones, key, int(due), attempt, record)
  redis.call('ZADD', run.fired, unpack(tombstones))
  if tonumber(lease_end) == 0 then owing.list({ ref }) end
  return ref
end

-- firings.move_one takes a pending timer out of due and fires it. It writes a tombstone first: if that is refused, for
-- want of a right, the timer has not moved.
function firings.move_one(key, due, record, lease_end)
  redis.call('ZADD', run.fired, clock.real_text(), key)
  index.forget(key)
  return firings.add(key, due, record, lease_end)
end

-- owe moves a pending timer to the firings, owed, where nothing overwrites it.
function firings.owe(key, due, flag)
  local record = redis.call('HGET', run.data, key) or 'm:'
  if flag then record = entry.add_flag(record, flag) end
  firings.move_one(key, due, record, 0)
end

-- firings.add_retry is firings.add for a retry. The id of an event does not contain a ref: it is made of the key, the
-- due time and the attempt, and a payload may have stated the attempt. So the retry moves back from the due time of any
-- firing that may have its attempt.
function firings.add_retry(key, due, record, lease_end, kind)
  local at, tries = due, 0
  while index.pending(key) == at or redis.call('ZSCORE', run.firing, int(at) .. '::' .. key)
    or redis.call('ZSCORE', run.fired, ':i:' .. int(at) .. ':' .. key) do
    tries = tries + 1
    at = due - beside.jump(tries)
  end
  return firings.add(key, at, record, lease_end, kind)
end

-- The firings of a key.

-- Limits of the names in owed and of the claimed firings looked at to find a key's. Of long keys it is fewer names,
-- with at most OWED_BYTES of keys, which take about a ms.
firings.MOST_OWED, firings.OWED_BYTES, firings.MOST_CLAIMED = 1000, 300000, 1000

-- firings.given returns the first refs of a key's firings that may be unclaimed.
function firings.given(key)
  local begin, most = owing.key_prefix(key), math.min(firings.MOST_OWED, math.floor(firings.OWED_BYTES / #key))
  local names = owing.of_key('owed', key, 0, most)
  for i = 1, #names do names[i] = string.sub(names[i], #begin + 1) .. ':' .. key end
  return names
end

-- The part before the key in a ref is shorter.
local MOST_BEFORE_KEY = 32

-- firings.claimed returns the ref of a claimed firing of a key, one for which is_wanted returns true if it is given.
-- Otherwise it returns nil, and whether it has looked at all claimed firings.
function firings.claimed(key, is_wanted)
  local refs = redis.call('ZRANGE', run.firing, '(0', '(' .. HELD_TEXT, 'BYSCORE', 'LIMIT', 0, firings.MOST_CLAIMED)
  local ending = ':' .. key
  for i = 1, #refs do
    if #refs[i] - #ending < MOST_BEFORE_KEY and string.sub(refs[i], -#ending) == ending
      and string.match(refs[i], '^%d+:%d*:(.*)$') == key and (not is_wanted or is_wanted(refs[i])) then
      return refs[i]
    end
  end
  return nil, #refs < firings.MOST_CLAIMED
end

-- The work of a look for a key's occurrence, as bytes of payload: four such looks are a call's work.
firings.LOOK = BUDGET / 4

-- firings.occurrence returns the ref and the record of the occurrence of a key that is firing, or nil. Of a key with
-- very many firings it may not find it.
function firings.occurrence(key)
  run.spent = run.spent + firings.LOOK
  local found, most = nil, run.spent + BUDGET
  local function is_occurrence(ref)
    if run.spent > most or string.find(ref, '^%d+:0:') then return false end
    local record = redis.call('HGET', run.firingdata, ref) or 'm:'
    run.spent = run.spent + #record
    if entry.is_repeating(record) then found = record end
    return found ~= nil
  end
  local ref = firings.claimed(key, is_occurrence)
  if ref then return ref, found end
  for _, given in ipairs(firings.given(key)) do
    if is_occurrence(given) then return given, found end
  end
end
