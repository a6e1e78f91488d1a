-- A hash of more fields is too large, whatever is in them.
payload.MAX_FIELDS = 1000

-- is_large reports whether a hash is too large for a payload, without reading it. Redis counts the bytes of at most
-- MAX_FIELDS names and values; its own share is less than a quarter of these and FIELD_OVERHEAD for each field. Where
-- Redis refuses, the number of fields alone decides.
local FIELD_OVERHEAD, HASH_OVERHEAD = 128, 16384
local function is_large(key, fields, max)
  if fields > payload.MAX_FIELDS or 6 * fields > max then return true end
  local bytes = redis.pcall('MEMORY', 'USAGE', key, 'SAMPLES', '0')
  return type(bytes) == 'number' and bytes > 1.25 * max + FIELD_OVERHEAD * fields + HASH_OVERHEAD
end

-- A text is encoded in pieces of PIECE bytes; each byte may take six: so no more is encoded than there is room for.
local PIECE = 16384

-- add_text adds a text to parts of JSON. It returns the room left, which is below 0 where the text does not fit.
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

-- add_fields adds the names and values from first to last of a hash to parts of JSON, and returns as add_text does.
-- Some at a time, in any order, cost a third as much; few keep HGETALL's order.
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

-- payload.of_hash writes a hash as a JSON object: in HGETALL's order, but for many fields. It returns nil if that
-- exceeds the payload limit.
local MANY_FIELDS, CHUNK = 128, 32
function payload.of_hash(key, fields, max)
  if is_large(key, fields, max) then return nil end
  local pairs_of = redis.pcall('HGETALL', key)
  local parts, room = { '{' }, max - 2
  for first = 1, #pairs_of, 2 * CHUNK do
    room = add_fields(parts, pairs_of, first, math.min(first + 2 * CHUNK, #pairs_of + 1) - 1, fields <= MANY_FIELDS,
      room)
    if room < 0 then return nil end
  end
  parts[#parts + 1] = '}'
  return table.concat(parts)
end
