-- include: clock latest index
-- expires_at returns what PEXPIRETIME says of a user's key. One that runs out after LATEST counts as due then: readers
-- of JSON know no later time, and a score or a Lua number would lose digits.
local function expires_at(key) return math.min(redis.call('PEXPIRETIME', key), LATEST) end

-- expiry is expires_at, but nil if timerd may not ask.
local function expiry(key)
  local at = redis.pcall('PEXPIRETIME', key)
  if type(at) == 'number' then return math.min(at, LATEST) end
end

-- pending returns when a member is due, or nil.
local function pending(member)
  return tonumber(redis.call('ZSCORE', due_key, member) or nil)
end

-- head returns the first due time, or -1.
local function head()
  local first = redis.call('ZRANGE', due_key, 0, 0, 'WITHSCORES')
  return tonumber(first[2] or -1)
end

-- forget takes a member out of the schedule.
local function forget(member)
  redis.call('ZREM', due_key, member)
  redis.call('HDEL', data_key, member)
end

-- plan_ref returns the ref of a repetition that is to be planned, with its serial.
local function plan_ref(key, serial) return int(math.floor(serial / 1000)) .. ':0:' .. key end

-- serial_of returns the serial of a key's repetition, or nil.
local function serial_of(key) return tonumber(redis.call('ZSCORE', prefix .. 'repeat', key) or nil) end

-- end_repetition ends the repetition of a key, if serial is not nil: what is under way of it arms
-- nothing any more, and what is to be planned goes.
local function end_repetition(key, serial)
  if not serial then return end
  redis.call('ZREM', prefix .. 'repeat', key)
  if serial < 0 then
    local ref = plan_ref(key, -serial)
    redis.call('ZREM', firing_key, ref)
    redis.call('ZREM', prefix .. 'refused', ref)
    redis.call('HDEL', firingdata_key, ref)
  end
end

-- cancel_pending takes a key's own timer out of the schedule, and ends its repetition.
local function cancel_pending(key)
  forget(key)
  end_repetition(key, serial_of(key))
end

-- note_size is called by whoever puts a record into the index, before.
local function note_size(record)
  if #record > LARGE then redis.call('HSET', data_key, ':l:', '') end
end

-- may_be_large tells whether there may be large records.
local function may_be_large() return redis.call('HEXISTS', data_key, ':l:') == 1 end

-- fitting returns how many of some records, from the first on, have no more bytes than
-- room together: one at least. They are in data or in firingdata.
local function fitting(hash, names, room)
  if not may_be_large() then return #names end
  for i = 1, #names do
    room = room - redis.call('HSTRLEN', hash, names[i])
    if room < 0 then return math.max(i - 1, 1) end
  end
  return #names
end

-- flags returns the flags of a record.
local function flags(record) return string.match(record, '^%d*(%a*)[:;]') or 'm' end

-- add_flag returns a record with one more flag.
local function add_flag(record, flag)
  if string.find(flags(record), flag, 1, true) then return record end
  local n = #string.match(record, '^%d*')
  return string.sub(record, 1, n) .. flag .. string.sub(record, n + 1)
end

-- is_repeating tells of a record that it is that of an occurrence of a repetition.
local function is_repeating(record)
  return string.byte(record) ~= 58 and string.find(flags(record), 'p', 1, true) ~= nil
end

-- is_occurrence_of tells of a record that it is that of an occurrence of the repetition with a
-- serial, as ZSCORE returns it.
local function is_occurrence_of(record, serial)
  return is_repeating(record) and math.abs(tonumber(serial)) == tonumber(string.match(record, ';R=(%d+)'))
end

-- with_value returns the record of an occurrence with another record's payload, and what that
-- one says of it and of the key.
local function with_value(occurrence, record)
  local marks, n = string.match(record, '^%d*(%a*)[^:]*()') -- not of the payload, which costs 15 ns a byte
  return 'p' .. string.gsub(marks, 'p', '') .. string.match(occurrence, '^%d*%a*([^:]*)') .. string.sub(record, n)
end

-- may_be_absent tells of a pending timer's record that it is known that its key may be
-- gone although nobody deleted it.
local function may_be_absent(record) return string.find(flags(record), '[eu]') ~= nil end
