-- The fields of data that are of no timer: see index.lua.
meta.FIELDS = { ':l:', ':?:', ':h:', ':i:', ':s:', ':w:' }

-- meta.is_field reports whether a name is one of them.
function meta.is_field(name)
  for i = 1, #meta.FIELDS do
    if meta.FIELDS[i] == name then return true end
  end
  return false
end

-- meta.without subtracts these from a number of fields of data.
function meta.without(data, fields)
  for i = 1, #meta.FIELDS do fields = fields - redis.call('HEXISTS', data, meta.FIELDS[i]) end
  return fields
end

-- meta.note_contest notes that a timer may be contested from now on.
function meta.note_contest() redis.call('HSET', run.data, ':?:', int(clock.real() + clock.REMEMBER)) end

-- meta.knows_contest reports whether the partition may have contested timers, or dismissed ones.
function meta.knows_contest() return redis.call('HEXISTS', run.data, ':?:') == 1 end

-- meta.tidy removes the fields about timers where there are no timers. Records without a member in due or firing are
-- put back by a sweep, which has to know whether they are large.
function meta.tidy()
  if redis.call('HEXISTS', run.data, ':l:') + redis.call('HEXISTS', run.data, ':?:') == 0 then return end
  local fields = redis.call('HLEN', run.data)
  if meta.without(run.data, fields) == 0
    and redis.call('EXISTS', run.due, run.firing, run.firingdata) == 0 then
    redis.call('HDEL', run.data, ':l:', ':?:')
  end
end
