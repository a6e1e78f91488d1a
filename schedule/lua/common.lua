-- expiry returns what PEXPIRETIME says of a user's key, or nil if timerd may not ask.
local function expiry(key)
  local at = redis.pcall('PEXPIRETIME', key)
  if type(at) == 'number' then return at end
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

-- may_be_absent tells of a pending timer's record that it is known that its key may be
-- gone although nobody deleted it.
local function may_be_absent(record) return string.find(flags(record), '[eu]') ~= nil end
