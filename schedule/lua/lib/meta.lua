-- The fields of data that are of no timer: see index.lua.
meta.FIELDS = { ':l:', ':?:', ':h:', ':i:', ':s:', ':w:' }

-- meta.is_field reports whether a name is one of them.
function meta.is_field(name)
  for i = 1, #meta.FIELDS do
    if meta.FIELDS[i] == name then return true end
  end
  return false
end

-- meta.without returns a number of fields of a partition's data less these.
function meta.without(data, fields)
  local there = redis.call('HMGET', data, unpack(meta.FIELDS))
  for i = 1, #there do fields = fields - (there[i] and 1 or 0) end
  return fields
end

-- meta.note_contest notes that a timer may be contested from now on.
function meta.note_contest() redis.call('HSET', run.data, ':?:', int(clock.real() + clock.REMEMBER)) end

-- meta.tidy removes the fields about timers where there are no timers. Records without a member in due or firing are
-- put back by a sweep, which has to know whether they are large.
function meta.tidy()
  local there = redis.call('HMGET', run.data, ':l:', ':?:')
  if not there[1] and not there[2] then return end
  local fields = redis.call('HLEN', run.data)
  if meta.without(run.data, fields) == 0
    and redis.call('EXISTS', run.due, run.firing, run.firingdata) == 0 then
    redis.call('HDEL', run.data, ':l:', ':?:')
  end
end
