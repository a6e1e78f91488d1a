--[[ repetitions reads what keys repeat by. It writes nothing.
KEYS    1  the partition's prefix
ARGV    keys
Returns for each the record of the occurrence that its repetition is at, pending or not; else
when its single timer is due; nil if it has neither; or -1 if so many timers are firing that
the occurrence was not found among them. ]]

open(KEYS[1])

-- record_at returns the record of the occurrence of a key that has a serial, or nil and whether
-- all of the key's were looked at.
local function record_at(key, serial)
  local function its(record)
    return record and tonumber(string.match(record, '^%w*[^:]*;R=(%d+)') or -1) == serial and record
  end
  local record = its(redis.call('HGET', data_key, key))
  if record then return record end
  for _, ref in ipairs(given_refs(key)) do
    record = its(redis.call('HGET', firingdata_key, ref))
    if record then return record end
  end
  local _, all = claimed_firing(key, function(ref)
    record = its(redis.call('HGET', firingdata_key, ref))
    return record
  end)
  return record or nil, all
end

local found = {}
for i, key in ipairs(ARGV) do
  local serial = tonumber(redis.call('ZSCORE', prefix .. 'repeat', key) or nil)
  if serial then
    local record, all = record_at(key, math.abs(serial))
    found[i] = record or not all and -1
  else
    found[i] = pending(key) or false
  end
end
return found
