-- include: clock index common move owed
-- age returns how long ago a tombstone was made, or nil.
local function age(tombstone)
  local at = tonumber(redis.call('ZSCORE', fired_key, tombstone) or nil)
  return at and now - at
end

-- fire adds a firing: claimed until lease_end, or owed if that is 0. If another firing
-- of the same due time has its ref, this one moves back by 1 ms, because forward might
-- be too early. It returns the ref.
local function fire(key, due, record, lease_end)
  local attempt = attempt_of(record)
  local ref = int(due) .. ':' .. attempt .. ':' .. key
  while redis.call('ZADD', firing_key, 'NX', lease_end, ref) == 0 do
    due = due - 1
    ref = int(due) .. ':' .. attempt .. ':' .. key
  end
  redis.call('HSET', firingdata_key, ref, record)
  local tombstones = {}
  add_tombstones(tombstones, key, int(due), attempt, record)
  redis.call('ZADD', fired_key, unpack(tombstones))
  if tonumber(lease_end) == 0 then list_owed(prefix, { ref }) end
  return ref
end

-- fire_pending takes a pending timer out of due and fires it. It writes a tombstone
-- first: if that is refused, for want of a right, the timer has not moved.
local function fire_pending(key, due, record, lease_end)
  redis.call('ZADD', fired_key, now_text, key)
  forget(key)
  return fire(key, due, record, lease_end)
end

-- owe moves a pending timer to the firings, owed, where nothing overwrites it.
local function owe(key, due, flag)
  local record = redis.call('HGET', data_key, key) or 'm:'
  if flag then record = add_flag(record, flag) end
  fire_pending(key, due, record, 0)
end
