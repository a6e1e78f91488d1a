-- may_be_shared tells whether another timer of a key may have, or get, the due time of a firing of
-- attempt 1: one that waits beside, or one that is owed or held and that a resume may shift to it.
-- Only claims ask, and say so by run.beside_others: each firing is claimed once at least.
local function may_be_shared(key, due, attempt)
  if not run.beside_others then return false end
  local begin = #key .. ':' .. key .. ':'
  local beside = redis.call('ZMSCORE', run.prefix .. 'beside', begin .. due .. '.', begin .. due .. '.1')
  if beside[1] or beside[2] then return true end
  local names = redis.call('ZRANGE', run.prefix .. 'owed', '[' .. begin, '(' .. #key .. ':' .. key .. ';', 'BYLEX', 'LIMIT', 0, 2)
  return #names == 2 or #names == 1 and names[1] ~= begin .. due .. ':' .. attempt
end

-- id_tombstone returns the tombstone that keeps others from getting the id of a firing: retries
-- and timers that are shifted. It returns nil if none can get it: most retries have attempts above
-- 1, and the others go by firings.free_due. Long records are not searched: of some that takes Redis 15 ns a byte.
local MOST_SEARCHED = 1024
local function id_tombstone(key, due, attempt, record)
  if (attempt == '' and #record <= MOST_SEARCHED and not entry.may_state_attempt(record) or attempt == '1' and not entry.fires_again(record))
    and not may_be_shared(key, due, attempt) then return nil end
  return ':i:' .. due .. ':' .. key
end

-- firings.add_tombstones adds those of a firing, whose due time is given in text, to the
-- arguments of a ZADD.
function firings.add_tombstones(arguments, key, due, attempt, record)
  local n = #arguments
  arguments[n + 1], arguments[n + 2] = run.now_text, key
  local id = id_tombstone(key, due, attempt, record)
  if id then arguments[n + 3], arguments[n + 4] = int(run.now + clock.REMEMBER), id end
end

-- fire_one is firings.move for one timer, as most claims from a slot of a cluster bring, without fire_beside.
local function fire_one(member, due, record, lease_end, take_out)
  local attempt = entry.attempt(record)
  local ref = due .. ':' .. attempt .. ':' .. member
  if redis.call('HSETNX', run.firingdata, ref, record) == 0 then return nil end
  local id = id_tombstone(member, due, attempt, record)
  if id then
    redis.call('ZADD', run.fired, run.now_text, member, int(run.now + clock.REMEMBER), id)
  else
    redis.call('ZADD', run.fired, run.now_text, member)
  end
  if take_out then take_out(1) else redis.call('ZREM', run.due, member) end
  redis.call('ZADD', run.firing, lease_end or int(HELD + due), ref)
  redis.call('HDEL', run.data, member)
  return ref
end

-- How many timers are moved or taken in by one group of commands. More would save
-- little, and payloads are read before it is known whether there is room for them.
firings.GROUP = 32

-- firings.move moves pending timers, as many as there are records, to where fire puts them,
-- with the same commands for all of them. Their due times are given in text. Without a
-- lease_end they are held. It returns
-- their refs. fire_beside adds a timer whose ref another firing has; without it firings.move
-- then returns nil and has done nothing. take_out takes so many of the timers out of due, if
-- there is a cheaper way than ZREM. What cannot be seen is written first: if a command
-- is refused there, for want of a right to it, no timer has moved.
function firings.move(members, dues, records, lease_end, fire_beside, take_out)
  local refs, firing, firingdata, tombstones, n = {}, {}, {}, {}, #records
  if n == 1 and not fire_beside then
    refs[1] = fire_one(members[1], dues[1], records[1], lease_end, take_out)
    return refs[1] and refs
  end
  for i = 1, n do
    local record = records[i]
    local attempt = entry.attempt(record)
    local ref = dues[i] .. ':' .. attempt .. ':' .. members[i]
    refs[i] = ref
    firing[2 * i - 1], firing[2 * i] = lease_end or int(HELD + dues[i]), ref
    firingdata[2 * i - 1], firingdata[2 * i] = ref, record
    firings.add_tombstones(tombstones, members[i], dues[i], attempt, record)
  end
  local taken = redis.call('ZMSCORE', run.firing, unpack(refs))
  for i = 1, n do
    if taken[i] then -- by another firing, which stays as it is
      if not fire_beside then return nil end
      refs[i] = fire_beside(members[i], tonumber(dues[i]), records[i], lease_end or '0')
      firing[2 * i], firingdata[2 * i - 1] = refs[i], refs[i]
    end
  end
  redis.call('HSET', run.firingdata, unpack(firingdata))
  redis.call('ZADD', run.fired, unpack(tombstones))
  if take_out then take_out(n) else redis.call('ZREM', run.due, unpack(members, 1, n)) end
  redis.call('ZADD', run.firing, unpack(firing))
  redis.call('HDEL', run.data, unpack(members, 1, n))
  return refs
end

-- age returns how long ago a tombstone was made, or nil.
function firings.age(tombstone)
  local at = tonumber(redis.call('ZSCORE', run.fired, tombstone) or nil)
  return at and run.now - at
end

-- fire adds a firing: claimed until lease_end, or owed if that is 0. If another firing
-- of the same due time has its ref, this one moves back by 1 ms, because forward might
-- be too early. It returns the ref.
function firings.add(key, due, record, lease_end)
  local attempt = entry.attempt(record)
  local ref = int(due) .. ':' .. attempt .. ':' .. key
  while redis.call('ZADD', run.firing, 'NX', lease_end, ref) == 0 do
    due = due - 1
    ref = int(due) .. ':' .. attempt .. ':' .. key
  end
  redis.call('HSET', run.firingdata, ref, record)
  local tombstones = {}
  firings.add_tombstones(tombstones, key, int(due), attempt, record)
  redis.call('ZADD', run.fired, unpack(tombstones))
  if tonumber(lease_end) == 0 then owing.list(run.prefix, { ref }) end
  return ref
end

-- firings.move_one takes a pending timer out of due and fires it. It writes a tombstone
-- first: if that is refused, for want of a right, the timer has not moved.
function firings.move_one(key, due, record, lease_end)
  redis.call('ZADD', run.fired, run.now_text, key)
  index.forget(key)
  return firings.add(key, due, record, lease_end)
end

-- owe moves a pending timer to the firings, owed, where nothing overwrites it.
function firings.owe(key, due, flag)
  local record = redis.call('HGET', run.data, key) or 'm:'
  if flag then record = entry.add_flag(record, flag) end
  firings.move_one(key, due, record, 0)
end

-- firings.free_due returns the first due time from one on that no other firing of a key has that is attempt
-- 1, as far as is known: so a timer that fires as attempt 1 again has an id of its own.
function firings.free_due(key, due)
  local to_come, step = { [index.pending(key) or 0] = true }, 1
  for _, contested in ipairs({ ':?:', ':d:' }) do
    local about = redis.call('HGET', run.data, contested .. key) or ''
    to_come[tonumber(string.match(about, '^%d+') or 0)] = true
  end
  while to_come[due] or redis.call('ZSCORE', run.fired, ':i:' .. int(due) .. ':' .. key)
    or redis.call('ZSCORE', run.firing, int(due) .. '::' .. key) or redis.call('ZSCORE', run.firing, int(due) .. ':1:' .. key) do
    due, step = due + step, 2 * step
  end
  return due
end

-- firings.is_taken tells whether another timer of the key has, or may have had, the id of one that is due
-- at a time: one that fires or has fired, or that waits. own_stays says that the key's own timer is another.
function firings.is_taken(key, due, attempt, own_stays)
  local text = int(due)
  if redis.call('ZSCORE', run.fired, ':i:' .. text .. ':' .. key) or due == run.now and firings.age(key) == 0 then return true end
  local firing = redis.call('ZMSCORE', run.firing, text .. '::' .. key, text .. ':1:' .. key, text .. ':' .. attempt .. ':' .. key)
  if firing[1] or firing[2] or firing[3] then return true end
  local waiting, of_key = run.prefix .. 'beside', owing.key_prefix(key)
  if redis.call('ZRANGE', waiting, '[' .. of_key, '(' .. #key .. ':' .. key .. ';', 'BYLEX', 'LIMIT', 0, 1)[1] then -- as for few keys
    for _, begin in ipairs({ of_key .. text, of_key .. 's' .. text }) do
      if redis.call('ZRANGE', waiting, '[' .. begin .. '.', '(' .. begin .. '/', 'BYLEX', 'LIMIT', 0, 1)[1] then return true end
    end
  end
  return own_stays and index.pending(key) == due
end

-- firings.add_retry is fire for a retry. The id of an event does not contain a ref: it is made
-- of the key, the due time and the attempt, and a payload may have stated the attempt.
-- So the retry moves back from the due time of any firing that may have its attempt.
function firings.add_retry(key, due, record, lease_end)
  local at, tries = due, 0
  while index.pending(key) == at or redis.call('ZSCORE', run.firing, int(at) .. '::' .. key)
    or redis.call('ZSCORE', run.fired, ':i:' .. int(at) .. ':' .. key) do
    tries = tries + 1
    at = due - beside.jump(tries)
  end
  return firings.add(key, at, record, lease_end)
end

-- The firings of a key.

-- How many names of owed and how many claimed firings are looked at to find those of a key. Of
-- long keys it is fewer names: no more than OWED_BYTES of keys, which take about a ms.
firings.MOST_OWED, firings.OWED_BYTES, firings.MOST_CLAIMED = 1000, 300000, 1000

-- firings.given returns the first refs of a key's firings that may be claimed by nobody.
function firings.given(key)
  local begin, most = owing.key_prefix(key), math.min(firings.MOST_OWED, math.floor(firings.OWED_BYTES / #key))
  local names = redis.call('ZRANGE', run.prefix .. 'owed', '[' .. begin, '(' .. #key .. ':' .. key .. ';', 'BYLEX', 'LIMIT', 0, most)
  for i = 1, #names do names[i] = string.sub(names[i], #begin + 1) .. ':' .. key end
  return names
end

-- What is before the key in a ref has fewer bytes than this.
local MOST_BEFORE_KEY = 32

-- firings.claimed returns the ref of a firing of a key that somebody has claimed, and that is
-- wanted, if that is given. Without one it returns nil, and whether all claimed firings were
-- looked at: only then there is none.
function firings.claimed(key, is_wanted)
  local refs = redis.call('ZRANGE', run.firing, '(0', '(' .. HELD_TEXT, 'BYSCORE', 'LIMIT', 0, firings.MOST_CLAIMED)
  local ending = ':' .. key
  for i = 1, #refs do
    if #refs[i] - #ending < MOST_BEFORE_KEY and string.sub(refs[i], -#ending) == ending and string.match(refs[i], '^%d+:%d*:(.*)$') == key
      and (not is_wanted or is_wanted(refs[i])) then
      return refs[i]
    end
  end
  return nil, #refs < firings.MOST_CLAIMED
end
