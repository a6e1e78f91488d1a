#!lua flags=no-writes
--[[ upcoming reads the repetitions of keys without their payloads. It writes nothing.
KEYS    1  the partition's prefix
ARGV    keys
Returns for each key its pending record without the colon and the payload, or an empty text, and its
due time, or -1. It stops at 400 KB of payloads, but not before the first key. ]]
index.open(KEYS[1])
local out, read = {}, 0
for i, key in ipairs(ARGV) do
  read = read + redis.call('HSTRLEN', run.data, key)
  if read > BUDGET and i > 1 then break end
  local record = redis.call('HGET', run.data, key) or ''
  out[2 * i - 1] = string.sub(record, 1, (string.find(record, ':', 1, true) or 1) - 1)
  out[2 * i] = index.pending(key) or -1
end
return out
