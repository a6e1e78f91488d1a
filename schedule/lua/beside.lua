-- names_beside returns the names of the retries that wait beside a key's newer timer,
-- each followed by a space, or nil.
local function names_beside(key) return redis.call('HGET', data_key, ':b:' .. key) or nil end

-- forget_beside takes a retry that waited beside a newer timer out of the schedule.
local function forget_beside(member, key)
  forget(member)
  local names, name = names_beside(key) or '', string.match(member, '^:([^:]*):')
  local rest = string.gsub(names, '[^ ]+ ', function(n) if n == name .. ' ' then return '' end end)
  if rest == '' then
    redis.call('HDEL', data_key, ':b:' .. key)
  else
    redis.call('HSET', data_key, ':b:' .. key, rest)
  end
end

-- fire_retry is fire for a retry. The id of an event does not contain a ref: it is made
-- of the key, the due time and the attempt, and a payload may have stated the attempt.
-- So the retry moves back from the due time of any firing that may have its attempt.
local function fire_retry(key, due, record, lease_end)
  while pending(key) == due or redis.call('ZSCORE', firing_key, int(due) .. '::' .. key)
    or redis.call('ZSCORE', fired_key, ':i:' .. int(due) .. ':' .. key) do
    due = due - 1
  end
  return fire(key, due, record, lease_end)
end
