#!lua flags=no-writes
--[[ inspect reads everything that the index has of a key. It writes nothing.
KEYS    1  the partition's prefix
ARGV    1  the timer's key
        2  how many bytes of each payload
        3  how many timers at most
Returns {this server's clock, the key's expiry (-1: never, -2: no such key, -3: timerd may not ask),
the serial of its repetition or 0, the time of the last claim of its timers or 0, the due time of a
contested timer or 0, 1 if all claimed firings were searched, 1 if there are more timers, then for
each timer: its kind, its name in the index, its score, its record with the payload cut, or nil, the
payload's length in bytes, and 1 if NATS refused it}. After the first record it reads 400 KB of
records at most, and returns nil for the rest. The kinds are
  own     the key's own timer
  key     likewise, but not in the index yet
  beside  a member of due that waits beside
  firing  a ref
]]
index.open(KEYS[1])
local key, bytes, most = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local at, was = ttl.try(key) or -3, index.pending(key)
local contested = string.match(redis.call('HGET', run.data, ':?:' .. key) or '', '^%d+')
local out = { clock.due(), at, tonumber(redis.call('ZSCORE', run.prefix .. 'repeat', key) or 0),
  tonumber(redis.call('ZSCORE', run.fired, key) or 0), tonumber(contested or 0), 1, 0 }
local seen, count, read = {}, 0, 0

-- add adds a timer, with its record.
local function add(kind, name, score, record, size)
  local n, colon = #out, record and string.find(record, ':', 1, true)
  local refused = kind == 'firing' and redis.call('ZSCORE', run.prefix .. 'refused', name)
  out[n + 1], out[n + 2], out[n + 3] = kind, name, string.format('%.2f', score)
  out[n + 4] = colon and string.sub(record, 1, colon + bytes) or false
  out[n + 5], out[n + 6] = colon and #record - colon or size, refused and 1 or 0
  seen[name], count = true, count + 1
end

-- add_from adds a timer whose record is in a hash, if there is room.
local function add_from(hash, kind, name, score)
  if not score or seen[name] then return end
  if count == most then
    out[7] = 1
    return
  end
  local size, record = redis.call('HSTRLEN', hash, name), nil
  if read + size <= BUDGET or count == 0 then record = redis.call('HGET', hash, name) end
  read = read + size
  add(kind, name, tonumber(score), record or nil, size)
end

if at > clock.due() then
  local index = was and redis.call('HGET', run.data, key)
  local record = trigger.record_of(key, MAX_PAYLOAD)
  if record and index then record = trigger.follow(index, record, was == at) end
  record = record or index or 'm:'
  read = read + #record
  add(was and 'own' or 'key', key, at, record)
elseif was and at ~= -1 then
  add_from(run.data, 'own', key, was)
end
for _, member in ipairs(beside.members(key, 0, beside.MOST)) do
  add_from(run.data, 'beside', member, redis.call('ZSCORE', run.due, member))
end
for _, ref in ipairs(firings.given(key)) do
  add_from(run.firingdata, 'firing', ref, redis.call('ZSCORE', run.firing, ref))
end
local _, all = firings.claimed(key, function(ref)
  add_from(run.firingdata, 'firing', ref, redis.call('ZSCORE', run.firing, ref))
  return false
end)
if not all then out[6] = 0 end
return out
