-- The value of a trigger key that timerd wrote begins with this mark: the payload is in
-- the index. The mark's other bytes depend on the key, so that RENAME and COPY do not
-- pass one timer's mark off as another's.
local MARK, MARK_BYTES = '\0tmd', 8

-- mark returns the value of the trigger key of a timer that timerd wrote.
local function mark(key) return MARK .. string.sub(redis.sha1hex(key), 1, MARK_BYTES - #MARK) end

-- hash_payload writes a hash as a JSON object in HGETALL's order. It returns nil if
-- that would exceed the payload limit.
local function hash_payload(key, max)
  if 6 * redis.call('HLEN', key) > max then return nil end
  local names = redis.call('HKEYS', key)
  local size = 6 * #names
  for i = 1, #names do
    if size > max then return nil end
    size = size + #names[i] + redis.call('HSTRLEN', key, names[i])
  end
  if size > max then return nil end
  local pairs_of = redis.call('HGETALL', key)
  local out = {}
  for i = 1, #pairs_of, 2 do
    out[#out + 1] = cjson.encode(pairs_of[i]) .. ':' .. cjson.encode(pairs_of[i + 1])
  end
  local json = '{' .. table.concat(out, ',') .. '}'
  if #json > max then return nil end
  return json
end

-- How many bytes of values record_of has read. A field of a hash counts as
-- FIELD_BYTES. This bounds a call on several keys.
local spent, FIELD_BYTES = 0, 64

-- record_of returns the record that a live trigger key stands for. It returns nil if
-- the key has its mark, and so says nothing of the payload.
local function record_of(key, max)
  local value = redis.pcall('GETRANGE', key, 0, max + MARK_BYTES)
  if type(value) == 'table' then
    if redis.call('TYPE', key).ok ~= 'hash' then return 'm:' end
    spent = spent + FIELD_BYTES * math.min(redis.call('HLEN', key), max)
    value = hash_payload(key, max)
    return value and ':' .. value or 'l:'
  end
  spent = spent + #value
  if string.sub(value, 1, #MARK) == MARK and #value >= MARK_BYTES then
    if string.sub(value, 1, MARK_BYTES) ~= mark(key) then return 'm:' end
    if #value == MARK_BYTES then return nil end
    value = string.sub(value, MARK_BYTES + 1)
  end
  if #value > max then return 'l:' end
  return ':' .. value
end

-- upsert makes the index agree with a live trigger key that runs out at the time at.
-- was is when the index has it due, or nil. It returns 1 for a new timer, 2
-- for one whose due time changed, 0 otherwise.
local function upsert(key, was, at, max)
  local record = record_of(key, max)
  if not was then
    redis.call('ZADD', due_key, at, key)
    redis.call('HSET', data_key, key, record or 'm:')
    return 1
  end
  if record and redis.call('HGET', data_key, key) ~= record then
    redis.call('HSET', data_key, key, record)
  end
  if was == at then return 0 end
  redis.call('ZADD', due_key, at, key)
  return 2
end
