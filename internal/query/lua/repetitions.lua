#!lua flags=no-writes
--[[ repetitions reads the repetitions of keys. It writes nothing.
KEYS    1  the partition's prefix
ARGV    1  the most occurrences to look for among the firings
        then keys
Returns for each key, from the first on, the record of its repetition's present occurrence, pending
or not; without a repetition the due time of its single timer; nil without either; or -1 if too
many timers are owed or firing to find the occurrence. It reads a key's pending record, if there is
one, and of its firings at most 400 KB and one record. After 400 KB in all, or so many searches, it
stops: the caller asks again for the rest. ]]

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

local searches, read = 0, 0 -- read counts bytes of records

-- record_at returns the record of a key's occurrence with a serial, or nil and whether all of the key's firings were
-- searched.
local function record_at(key, serial)
  local record = redis.call('HGET', run.data, key)
  read = read + #(record or '')
  if record and entry.is_occurrence_of(record, serial) then return record end
  searches = searches + 1
  local unread, most = false, read + BUDGET
  local function is_it(ref)
    unread = unread or read > most
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
for i = 2, #ARGV do
  if i > 2 and (searches >= tonumber(ARGV[1]) or read > BUDGET) then break end
  local key = ARGV[i]
  local serial = tonumber(redis.call('ZSCORE', run.prefix .. 'repeat', key) or nil)
  if serial then
    local record, all = record_at(key, serial)
    found[i - 1] = record or not all and -1
  else
    found[i - 1] = index.pending(key) or false
  end
end
return found
