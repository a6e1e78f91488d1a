#!lua flags=no-writes
--[[ records reads records, and of each payload no more than is asked for. It writes nothing.
KEYS    1  the partition's prefix
ARGV    1  data or firingdata
        2  how many bytes of each payload; -1: all
        then the names of the records
Returns for each, from the first on, the record, or nil if there is none, and how many bytes its
payload has. They are fewer than given if the payloads are large: the caller gives the rest again. ]]
index.open(KEYS[1])

local hash, bytes, names, out = run.prefix .. ARGV[1], tonumber(ARGV[2]), {}, {}
for i = 3, #ARGV do names[i - 2] = ARGV[i] end
for i = 1, index.fitting(hash, names, BUDGET) do
  local record = redis.call('HGET', hash, names[i])
  local colon = record and string.find(record, ':', 1, true)
  out[2 * i - 1], out[2 * i] = record, colon and #record - colon or 0
  if colon and bytes >= 0 then out[2 * i - 1] = string.sub(record, 1, colon + bytes) end
end
return out
