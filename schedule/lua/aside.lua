-- A due timer whose key timerd may not read is set aside, so that it does not stop
-- others: it waits among the retries beside newer timers, with the flag s in its record,
-- and is looked at again and again, with growing pauses. The expired event of its key
-- fires it at once.

-- The pauses, in ms: a part of how long the timer has been due.
local SHORTEST_PAUSE, LONGEST_PAUSE, PAUSE_PART = 1000, 60000, 4

-- next_look returns when to look again at a timer that was due at a time.
local function next_look(due)
  return now + math.min(math.max(math.floor((now - due) / PAUSE_PART), SHORTEST_PAUSE), LONGEST_PAUSE)
end

-- set_aside sets a pending timer aside. It returns false, and has done nothing, if there
-- are too many of this key.
local function set_aside(key, due)
  local record = redis.call('HGET', data_key, key) or 'm:'
  if not add_beside(key, due, attempt_of(record), add_flag(record, 's'), next_look(due)) then return false end
  forget(key)
  return true
end

-- is_aside tells whether a record is that of a timer set aside.
local function is_aside(record) return string.find(flags(record), 's', 1, true) ~= nil end

-- without_aside returns the record of a timer set aside as it was.
local function without_aside(record) return (string.gsub(record, '^(%d*%a*)s(%a*:)', '%1%2', 1)) end

-- take_aside takes the first timer of a key that is set aside out of the schedule. It
-- returns when it was due and its record, or nil.
local function take_aside(key)
  local members = members_beside(key, 0, MAX_BESIDE)
  for i = 1, #members do
    local record = redis.call('HGET', data_key, members[i])
    if record and is_aside(record) then
      forget_beside(members[i], key)
      return tonumber(string.match(members[i], '^:(%d+)')), without_aside(record)
    end
  end
end
