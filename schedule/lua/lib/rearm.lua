-- include: clock index common beside payload
-- renewed returns the record of a timer that is set for another time: nothing is known of its key yet. A pattern
-- that took in the payload would cost 15 ns a byte.
local function renewed(record)
  local n = string.find(record, ':', 1, true)
  if n == 1 then return record end -- as nearly all do
  local attempt, marks, options = string.match(string.sub(record, 1, n - 1), '^(%d*)(%a*)(.*)$')
  return attempt .. string.gsub(marks, '[euxh]', '') .. options .. string.sub(record, n)
end

-- rearm sets a timer that waited for something else until then, for a time that lies
-- ahead: with its trigger key, or beside the newer timer of its key. It returns when it is due
-- and its member of due, or nil if too many wait beside that timer already. Between two
-- occurrences of a repetition the key is kept for the next one. The user's key comes first: if
-- timerd may not write it, the timer waits without one.
local function rearm(key, due, attempt, record)
  local was = pending(key)
  if was == due then due = due + 1 end
  local serial = not was and redis.call('ZSCORE', prefix .. 'repeat', key)
  local is_kept = serial and not is_occurrence_of(record, serial)
  if not was and not is_kept and redis.pcall('EXISTS', key) == 0
    and not redis.pcall('SET', key, mark(key), 'PXAT', int(due)).err then
    note_size(record)
    redis.call('ZADD', due_key, due, key)
    redis.call('HSET', data_key, key, record)
    return due, key
  end
  due = add_beside(key, due, attempt, record, '')
  if not due then return nil end
  note_size(record)
  return due, ':' .. int(due) .. '.' .. attempt .. ':' .. key
end
