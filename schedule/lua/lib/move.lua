-- include: scores clock index
-- may_state_attempt tells whether a payload may state its attempt: it may be that of
-- a JSON object with a field attempt, written with escapes or without.
local function may_state_attempt(payload)
  return string.find(payload, 'attempt', 1, true) or string.find(payload, '\\u', 1, true)
end

-- may_be_shared tells whether another timer of a key may have, or get, the due time of a firing of
-- attempt 1: one that waits beside, or one that is owed or held and that a resume may shift to it.
-- Only claims ask, and say so by claims_beside_others: each firing is claimed once at least.
local claims_beside_others = false
local function may_be_shared(key, due, attempt)
  if not claims_beside_others then return false end
  local begin = #key .. ':' .. key .. ':'
  local beside = redis.call('ZMSCORE', prefix .. 'beside', begin .. due .. '.', begin .. due .. '.1')
  if beside[1] or beside[2] then return true end
  local names = redis.call('ZRANGE', prefix .. 'owed', '[' .. begin, '(' .. #key .. ':' .. key .. ';', 'BYLEX', 'LIMIT', 0, 2)
  return #names == 2 or #names == 1 and names[1] ~= begin .. due .. ':' .. attempt
end

-- fires_again tells of a record whose attempt is 1 that it is that of a timer that has fired before:
-- it was postponed, or is replayed.
local function fires_again(record) return string.find(string.match(record, '^[^:]*'), ';O=', 1, true) ~= nil end

-- id_tombstone returns the tombstone that keeps others from getting the id of a firing: retries
-- and timers that are shifted. It returns nil if none can get it: most retries have attempts above
-- 1, and the others go by free_due (free_due.lua). Long records are not searched: of some that takes Redis 15 ns a byte.
local MOST_SEARCHED = 1024
local function id_tombstone(key, due, attempt, record)
  if (attempt == '' and #record <= MOST_SEARCHED and not may_state_attempt(record) or attempt == '1' and not fires_again(record))
    and not may_be_shared(key, due, attempt) then return nil end
  return ':i:' .. due .. ':' .. key
end

-- attempt_of returns the attempt that a record states, or an empty string.
local function attempt_of(record)
  if string.byte(record) == 58 then return '' end -- as nearly all do
  return string.match(record, '^%d*')
end

-- add_tombstones adds those of a firing, whose due time is given in text, to the
-- arguments of a ZADD.
local function add_tombstones(arguments, key, due, attempt, record)
  local n = #arguments
  arguments[n + 1], arguments[n + 2] = now_text, key
  local id = id_tombstone(key, due, attempt, record)
  if id then arguments[n + 3], arguments[n + 4] = int(now + REMEMBER), id end
end

-- fire_one is fire_all for one timer, as most claims from a slot of a cluster bring, without fire_beside.
local function fire_one(member, due, record, lease_end, take_out)
  local attempt = attempt_of(record)
  local ref = due .. ':' .. attempt .. ':' .. member
  if redis.call('HSETNX', firingdata_key, ref, record) == 0 then return nil end
  local id = id_tombstone(member, due, attempt, record)
  if id then
    redis.call('ZADD', fired_key, now_text, member, int(now + REMEMBER), id)
  else
    redis.call('ZADD', fired_key, now_text, member)
  end
  if take_out then take_out(1) else redis.call('ZREM', due_key, member) end
  redis.call('ZADD', firing_key, lease_end or int(HELD + due), ref)
  redis.call('HDEL', data_key, member)
  return ref
end

-- How many timers are moved or taken in by one group of commands. More would save
-- little, and payloads are read before it is known whether there is room for them.
local GROUP = 32

-- fire_all moves pending timers, as many as there are records, to where fire puts them,
-- with the same commands for all of them. Their due times are given in text. Without a
-- lease_end they are held. It returns
-- their refs. fire_beside adds a timer whose ref another firing has; without it fire_all
-- then returns nil and has done nothing. take_out takes so many of the timers out of due, if
-- there is a cheaper way than ZREM. What cannot be seen is written first: if a command
-- is refused there, for want of a right to it, no timer has moved.
local function fire_all(members, dues, records, lease_end, fire_beside, take_out)
  local refs, firing, firingdata, tombstones, n = {}, {}, {}, {}, #records
  if n == 1 and not fire_beside then
    refs[1] = fire_one(members[1], dues[1], records[1], lease_end, take_out)
    return refs[1] and refs
  end
  for i = 1, n do
    local record = records[i]
    local attempt = attempt_of(record)
    local ref = dues[i] .. ':' .. attempt .. ':' .. members[i]
    refs[i] = ref
    firing[2 * i - 1], firing[2 * i] = lease_end or int(HELD + dues[i]), ref
    firingdata[2 * i - 1], firingdata[2 * i] = ref, record
    add_tombstones(tombstones, members[i], dues[i], attempt, record)
  end
  local taken = redis.call('ZMSCORE', firing_key, unpack(refs))
  for i = 1, n do
    if taken[i] then -- by another firing, which stays as it is
      if not fire_beside then return nil end
      refs[i] = fire_beside(members[i], tonumber(dues[i]), records[i], lease_end or '0')
      firing[2 * i], firingdata[2 * i - 1] = refs[i], refs[i]
    end
  end
  redis.call('HSET', firingdata_key, unpack(firingdata))
  redis.call('ZADD', fired_key, unpack(tombstones))
  if take_out then take_out(n) else redis.call('ZREM', due_key, unpack(members, 1, n)) end
  redis.call('ZADD', firing_key, unpack(firing))
  redis.call('HDEL', data_key, unpack(members, 1, n))
  return refs
end
