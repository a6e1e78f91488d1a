-- include: limits clock index common move owed beside payload contest
-- A due timer whose key timerd may not read is set aside, so that it does not stop
-- others: it waits among the retries beside newer timers, with an s before its name,
-- and is looked at again and again, with growing pauses. The expired event of its key
-- fires it at once.

-- The pauses, in ms: a part of how long the timer has been due.
local SHORTEST_PAUSE, LONGEST_PAUSE, PAUSE_PART = 1000, 60000, 4

-- next_look returns when to look again at a timer that was due at a time.
local function next_look(due)
  return now + math.min(math.max(math.floor((now - due) / PAUSE_PART), SHORTEST_PAUSE), LONGEST_PAUSE)
end

-- park sets a pending timer aside. It returns false, and has done nothing, if there
-- are too many of this key.
local function park(key, due)
  local record = redis.call('HGET', data_key, key) or 'm:'
  spent = spent + #record
  if not add_beside(key, due, attempt_of(record), record, 's', next_look(due)) then return false end
  forget(key)
  return true
end

-- set_again tells whether the key of a timer that is set aside ran out and was set again
-- since. Without events check_ran_out says so. But timer_set, which wrote a mark, has not
-- made this timer owed: it is in the schedule under another name. If the key has its mark
-- and was taken in without a payload, its TTL was changed: it gets its payload back.
local function set_again(key, due, record)
  local current = pending(key) and redis.call('HGET', data_key, key)
  if not current or record_of(key, MAX_PAYLOAD) then return check_ran_out(key, due, record) end
  if current ~= 'm:' then return true end
  redis.call('HSET', data_key, key, record)
  return false
end

-- first_parked returns the member of due of the first timer of a key that is set aside, or nil.
local function first_parked(key)
  local first = key_prefix(key)
  local name = redis.call('ZRANGE', prefix .. 'beside', '[' .. first .. 's', '(' .. first .. 't', 'BYLEX', 'LIMIT', 0, 1)[1]
  return name and beside_member(name, key)
end

-- take_parked takes the first timer of a key that is set aside out of the schedule. It
-- returns when it was due and its record, or nil.
local function take_parked(key)
  local member = first_parked(key)
  if not member then return nil end
  local record = redis.call('HGET', data_key, member) or 'm:'
  forget_beside(member, key)
  return tonumber(string.match(member, '^:s(%d+)')), record
end
