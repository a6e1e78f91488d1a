#!lua flags=no-writes
--[[ repetitions reads the repetitions of keys. It writes nothing.
KEYS    1  the partition's prefix
ARGV    keys
Returns for each key the record of its repetition's present occurrence, pending or not; without a
repetition the due time of its single timer; nil without either; or -1 if too many timers are owed
or firing to find the occurrence. It reads a key's pending record, if there is one, and of firings
at most 400 KB and one record, for all keys of a call together. ]]

index.open(KEYS[1])

-- last_given returns the unclaimed refs among the last firings of a key, latest first. It also returns whether the key
-- has no other firings. The latest ref that is not a retry is the occurrence.
local function last_given(key)
  local begin, most = owing.key_prefix(key), math.min(firings.MOST_OWED, math.floor(firings.OWED_BYTES / #key))
  local names = redis.call('ZRANGE', run.prefix .. 'owed', '(' .. #key .. ':' .. key .. ';', '[' .. begin,
    'BYLEX', 'REV', 'LIMIT', 0, most)
  for i = 1, #names do names[i] = string.sub(names[i], #begin + 1) .. ':' .. key end
  return names, #names < most
end

local read = 0 -- bytes of firings' records read so far

-- record_at returns the record of a key's occurrence with a serial, or nil and whether all of the key's firings were
-- searched.
local function record_at(key, serial)
  local record = redis.call('HGET', run.data, key)
  if record and entry.is_occurrence_of(record, serial) then return record end
  local unread = false
  local function is_it(ref)
    unread = unread or read > BUDGET
    record = not unread and redis.call('HGET', run.firingdata, ref) or ''
    read = read + #record
    return entry.is_occurrence_of(record, serial)
  end
  local refs, whole = last_given(key)
  for i = 1, #refs do
    if is_it(refs[i]) then return record end
  end
  local ref, all = firings.claimed(key, is_it)
  return ref and record, all and whole and not unread
end

local found = {}
for i, key in ipairs(ARGV) do
  local serial = tonumber(redis.call('ZSCORE', run.prefix .. 'repeat', key) or nil)
  if serial then
    local record, all = record_at(key, serial)
    found[i] = record or not all and -1
  else
    found[i] = index.pending(key) or false
  end
end
return found
