-- How many timers are moved or taken in by one group of commands. More would save
-- little, and payloads are read before it is known whether there is room for them.
local GROUP = 32

-- fire_all moves pending timers, as many as there are records, to where fire puts them,
-- with the same commands for all of them. Their due times are given in text. It returns
-- their refs. fire_beside adds a timer whose ref another firing has; without it fire_all
-- then returns nil and has done nothing, and the timers are the first of due. What cannot
-- be seen is written first: if a command is refused there, for want of a right to it, no
-- timer has moved.
local function fire_all(members, dues, records, lease_end, fire_beside)
  local refs, firing, firingdata, tombstones, n = {}, {}, {}, {}, #records
  for i = 1, n do
    local record = records[i]
    local attempt = attempt_of(record)
    local ref = dues[i] .. ':' .. attempt .. ':' .. members[i]
    refs[i] = ref
    firing[2 * i - 1], firing[2 * i] = lease_end, ref
    firingdata[2 * i - 1], firingdata[2 * i] = ref, record
    add_tombstones(tombstones, members[i], dues[i], attempt, record)
  end
  local taken = redis.call('ZMSCORE', firing_key, unpack(refs))
  for i = 1, n do
    if taken[i] then -- by another firing, which stays as it is
      if not fire_beside then return nil end
      refs[i] = fire_beside(members[i], tonumber(dues[i]), records[i], lease_end)
      firing[2 * i], firingdata[2 * i - 1] = refs[i], refs[i]
    end
  end
  redis.call('HSET', firingdata_key, unpack(firingdata))
  redis.call('ZADD', fired_key, unpack(tombstones))
  if fire_beside then
    redis.call('ZREM', due_key, unpack(members, 1, n))
  else
    redis.call('ZREMRANGEBYRANK', due_key, 0, n - 1) -- half as dear
  end
  redis.call('ZADD', firing_key, unpack(firing))
  redis.call('HDEL', data_key, unpack(members, 1, n))
  return refs
end
