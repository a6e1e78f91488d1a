-- Pending timers become firings here, several by the same commands. Only timerd does this.

-- fire_one is batch.move for one timer, as most claims from a slot of a cluster bring. It returns its ref, or nil if
-- another firing has that.
local function fire_one(member, due, record, lease_end, take_out)
  local attempt = entry.attempt(record)
  local ref = due .. ':' .. attempt .. ':' .. member
  if redis.call('HSETNX', run.firingdata, ref, record) == 0 then
    if index.is_taken(ref, record) then return nil end
    index.rewrite_firings({ ref, record })
  end
  local id = ids.tombstone(member, due, attempt, record)
  if id then
    redis.call('ZADD', run.fired, clock.real_text(), member, int(clock.real() + clock.REMEMBER), id)
  else
    redis.call('ZADD', run.fired, clock.real_text(), member)
  end
  if take_out then take_out(1) else redis.call('ZREM', run.due, member) end
  lease_end = lease_end or int(HELD + due)
  local added = redis.call('ZADD', run.firing, 'NX', lease_end, ref)
  redis.call('HDEL', run.data, member)
  if added == 1 then return ref end
  redis.call('HDEL', run.firingdata, ref) -- another firing has the ref, and has lost its record
  return firings.add(member, tonumber(due), record, lease_end)
end

-- batch.move turns pending timers, as many as there are records, into firings, by the same commands for all. dues are
-- in text. Without a lease_end they are held. It returns them: a ref and a record each. fire_beside adds a timer whose
-- ref another firing has; without it batch.move then returns nil and has done nothing. take_out takes a number of
-- timers out of due in a cheaper way than ZREM. Records and tombstones of firings that are not there yet are written
-- first: if one of these commands is refused, for want of a right, no timer has moved.
function batch.move(members, dues, records, lease_end, fire_beside, take_out)
  local n = #records
  if n == 1 then
    local ref = fire_one(members[1], dues[1], records[1], lease_end, take_out)
    if ref or not fire_beside then return ref and { ref, records[1] } end
  end
  local refs, firing, moved, tombstones = {}, {}, {}, {}
  for i = 1, n do
    local record = records[i]
    local attempt = entry.attempt(record)
    local ref = dues[i] .. ':' .. attempt .. ':' .. members[i]
    refs[i] = ref
    firing[2 * i - 1], firing[2 * i] = lease_end or int(HELD + dues[i]), ref
    moved[2 * i - 1], moved[2 * i] = ref, record
    firings.add_tombstones(tombstones, members[i], dues[i], attempt, record)
  end
  local scores = redis.call('ZMSCORE', run.firing, unpack(refs))
  local is_torn = redis.call('ZCARD', run.firing) ~= redis.call('HLEN', run.firingdata)
  for i = 1, n do
    if scores[i] or is_torn and index.is_taken(refs[i], records[i]) then -- by another firing, which stays as it is
      if not fire_beside then return nil end
      local ref = fire_beside(members[i], tonumber(dues[i]), records[i], lease_end or '0')
      firing[2 * i], moved[2 * i - 1] = ref, ref
    end
  end
  index.rewrite_firings(moved)
  redis.call('ZADD', run.fired, unpack(tombstones))
  if take_out then take_out(n) else redis.call('ZREM', run.due, unpack(members, 1, n)) end
  redis.call('ZADD', run.firing, unpack(firing))
  redis.call('HDEL', run.data, unpack(members, 1, n))
  return moved
end
