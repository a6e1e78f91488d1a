-- include: index common
-- The value of a trigger key that timerd wrote begins with this mark: the payload is in
-- the index. The mark's other digits depend on the key, so that RENAME and COPY do not
-- pass one timer's mark off as another's. The whole is an integer of 64 bits, which Redis
-- keeps in 16 bytes; as text it would take 32 to 64. INCR and DECR leave what it begins with.
local MARK, MARK_BYTES = '-80116109100', 20

-- mark returns the value of the trigger key of a timer that timerd wrote.
local function mark(key) return MARK .. (10000000 + tonumber(string.sub(redis.sha1hex(key), 1, 6), 16)) end

-- SETRANGE, SETBIT and BITFIELD may leave the rest of a mark. A value that has kept KEPT bytes of its key's mark, counted
-- from the mark's beginning and its end, is one. So is any that begins like a mark: that is another key's, or was counted up.
local KEPT = 10

-- may_have_mark tells whether a value may have kept enough of a mark. It is quick, because nearly all have not.
local function may_have_mark(value)
  if #value < MARK_BYTES then return false end
  local from = MARK_BYTES - KEPT + 1
  return string.byte(value) == string.byte(MARK) or string.sub(value, from, #MARK) == string.sub(MARK, from)
end

-- has_rest_of tells whether the first bytes of a value are the rest of a mark.
local function has_rest_of(own, value)
  if string.sub(value, 1, #MARK) == MARK then return true end
  local first, last = 0, 0
  while string.byte(value, first + 1) == string.byte(own, first + 1) do first = first + 1 end
  while string.byte(value, MARK_BYTES - last) == string.byte(own, MARK_BYTES - last) do last = last + 1 end
  return first + last >= KEPT
end

-- A hash of more fields is too large, whatever is in them.
local MAX_FIELDS = 1000

-- is_large tells of a hash that it cannot be a payload, without reading it. Redis counts
-- the bytes of at most MAX_FIELDS names and values; what it adds to them for itself is
-- less than a quarter and FIELD_OVERHEAD for each field. Where it refuses, the number of
-- fields alone decides.
local FIELD_OVERHEAD, HASH_OVERHEAD = 128, 16384
local function is_large(key, fields, max)
  if fields > MAX_FIELDS or 6 * fields > max then return true end
  local bytes = redis.pcall('MEMORY', 'USAGE', key, 'SAMPLES', '0')
  return type(bytes) == 'number' and bytes > 1.25 * max + FIELD_OVERHEAD * fields + HASH_OVERHEAD
end

-- A text is encoded in pieces of PIECE bytes, each of which may take six: so no more is encoded than
-- there is room for.
local PIECE = 16384

-- add_text adds a text to parts of JSON. It returns how much room is left, which is below 0 where the
-- text does not fit.
local function add_text(parts, text, room)
  if #text <= PIECE then
    parts[#parts + 1] = cjson.encode(text)
    return room - #parts[#parts]
  end
  parts[#parts + 1], room = '"', room - 2
  for at = 1, #text, PIECE do
    if room < #text - at + 1 then return -1 end
    local piece = string.sub(cjson.encode(string.sub(text, at, at + PIECE - 1)), 2, -2)
    parts[#parts + 1], room = piece, room - #piece
  end
  parts[#parts + 1] = '"'
  return room
end

-- add_fields adds the names and values from first to last of a hash to parts of JSON, and returns as
-- add_text does. Some at a time, in any order, cost a third as much; few keep HGETALL's order.
local function add_fields(parts, pairs_of, first, last, in_order, room)
  local bytes = 0
  for i = first, last do bytes = bytes + #pairs_of[i] end
  if bytes > room then return -1 end
  if first > 1 then parts[#parts + 1], room = ',', room - 1 end
  if bytes <= PIECE and not in_order then
    local object = {}
    for i = first, last, 2 do object[pairs_of[i]] = pairs_of[i + 1] end
    parts[#parts + 1] = string.sub(cjson.encode(object), 2, -2)
    return room - #parts[#parts]
  end
  for i = first, last, 2 do
    if i > first then parts[#parts + 1], room = ',', room - 1 end
    room = add_text(parts, pairs_of[i], room) - 1
    if room < 0 then return room end
    parts[#parts + 1] = ':'
    room = add_text(parts, pairs_of[i + 1], room)
    if room < 0 then return room end
  end
  return room
end

-- hash_payload writes a hash as a JSON object: in HGETALL's order, but for many fields. It returns
-- nil if that exceeds the payload limit.
local MANY_FIELDS, CHUNK = 128, 32
local function hash_payload(key, fields, max)
  if is_large(key, fields, max) then return nil end
  local pairs_of = redis.pcall('HGETALL', key)
  local parts, room = { '{' }, max - 2
  for first = 1, #pairs_of, 2 * CHUNK do
    room = add_fields(parts, pairs_of, first, math.min(first + 2 * CHUNK, #pairs_of + 1) - 1, fields <= MANY_FIELDS, room)
    if room < 0 then return nil end
  end
  parts[#parts + 1] = '}'
  return table.concat(parts)
end

-- How many bytes of values record_of has read. A field of a hash counts as
-- FIELD_BYTES, which take as long. This bounds a call on several keys.
local spent, FIELD_BYTES = 0, 512

-- record_of returns the record that a live trigger key stands for. It returns nil if
-- the key says nothing of the payload: it has its mark, or timerd may not read it.
local function record_of(key, max)
  local value = redis.pcall('GETRANGE', key, 0, max + MARK_BYTES)
  if type(value) == 'table' then
    if not string.find(value.err, 'WRONGTYPE', 1, true) then return nil end
    local fields = redis.pcall('HLEN', key) -- fails for a value of any other type
    if type(fields) ~= 'number' then return 'm:' end
    value = hash_payload(key, fields, max)
    spent = spent + FIELD_BYTES * math.min(fields, MAX_FIELDS) + (value and #value or fields <= MAX_FIELDS and max or 0)
    return value and ':' .. value or 'l:'
  end
  spent = spent + #value
  if may_have_mark(value) then
    local own = mark(key)
    if value == own then return nil end
    if string.sub(value, 1, MARK_BYTES) == own then
      value = string.sub(value, MARK_BYTES + 1)
    elseif has_rest_of(own, value) then
      return 'm:'
    end
  end
  if #value > max then return 'l:' end
  return ':' .. value
end

-- upsert makes the index agree with a live trigger key that runs out at the time at.
-- was is when the index has it due, or nil. It returns 1 for a new timer, 2
-- for one whose due time changed, 0 otherwise. The record of a timer that due has lost is better than none.
local function upsert(key, was, at, max)
  local record = record_of(key, max)
  if not was then
    record = record or redis.call('HGET', data_key, key) or 'm:'
    note_size(record)
    redis.call('ZADD', due_key, at, key)
    redis.call('HSET', data_key, key, record)
    return 1
  end
  local current = record and redis.call('HGET', data_key, key)
  if record and current ~= record then
    if current and is_repeating(current) then record = with_value(current, record) end
    note_size(record)
    redis.call('HSET', data_key, key, record)
  end
  if was == at then return 0 end
  redis.call('ZADD', due_key, at, key)
  return 2
end
