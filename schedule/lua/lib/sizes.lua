-- The sizes of records. A record of more bytes than LARGE is large: several are not read at once before their sizes are
-- known.
sizes.LARGE = 16384

-- note notes whether a record put into the partition's index is large.
function sizes.note(record)
  if #record <= sizes.LARGE then return end
  redis.call('HSET', run.data, ':l:', '')
  run.may_be_large = true
end

-- may_be_large reports whether there may be large records.
function sizes.may_be_large()
  if run.may_be_large == nil then run.may_be_large = redis.call('HEXISTS', run.data, ':l:') == 1 end
  return run.may_be_large
end

-- fitting returns the number of first records that together have no more bytes than room: one at least. They are in
-- data or in firingdata.
function sizes.fitting(hash, names, room)
  if not sizes.may_be_large() then return #names end
  for i = 1, #names do
    room = room - redis.call('HSTRLEN', hash, names[i])
    if room < 0 then return math.max(i - 1, 1) end
  end
  return #names
end
