#!lua flags=no-writes
--[[ records reads records, with each payload cut at a length. It writes nothing.
KEYS    1  the partition's prefix
ARGV    1  data or firingdata
        2  how many bytes of each payload; -1: all
        then the names of the records
Returns for each name, from the first on, the record, or nil if there is none, and its payload's
length in bytes. If payloads are large, it stops early: the caller asks again for the rest. ]]
index.open(KEYS[1])

local hash, bytes, names, out = run.prefix .. ARGV[1], tonumber(ARGV[2]), {}, {}
for i = 3, #ARGV do names[i - 2] = ARGV[i] end
for i = 1, sizes.fitting(hash, names, BUDGET) do
  local record = redis.call('HGET', hash, names[i])
  local colon = record and string.find(record, ':', 1, true)
  out[2 * i - 1], out[2 * i] = record, colon and #record - colon or 0
  if colon and bytes >= 0 then out[2 * i - 1] = string.sub(record, 1, colon + bytes) end
end
return out
