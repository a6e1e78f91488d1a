-- The value of a trigger key that timerd wrote begins with this mark: the payload is in the index. The mark's other
-- digits depend on the key, so that RENAME and COPY do not pass one timer's mark off as another's. The whole is an
-- integer of 64 bits, which Redis keeps in 16 bytes; as text it would take 32 to 64. INCR and DECR leave its beginning.
local MARK, MARK_BYTES = '-80116109100', 20

-- mark returns the value of the trigger key of a timer that timerd wrote.
function trigger.mark(key) return MARK .. (10000000 + tonumber(string.sub(redis.sha1hex(key), 1, 6), 16)) end

-- SETRANGE, SETBIT and BITFIELD may leave the rest of a mark. A value that has kept KEPT bytes of its key's mark,
-- counted from the mark's beginning and its end, is one. So is any value that begins like a mark: it is another key's,
-- or was counted up.
local KEPT = 10

-- may_have_mark reports whether a value may have kept enough of a mark. It is quick, because nearly all have not.
local function may_have_mark(value)
  if #value < MARK_BYTES then return false end
  local from = MARK_BYTES - KEPT + 1
  return string.byte(value) == string.byte(MARK) or string.sub(value, from, #MARK) == string.sub(MARK, from)
end

-- has_rest_of reports whether the first bytes of a value are the rest of a mark.
local function has_rest_of(own, value)
  if string.sub(value, 1, #MARK) == MARK then return true end
  local first, last = 0, 0
  while string.byte(value, first + 1) == string.byte(own, first + 1) do first = first + 1 end
  while string.byte(value, MARK_BYTES - last) == string.byte(own, MARK_BYTES - last) do last = last + 1 end
  return first + last >= KEPT
end

-- A field of a hash counts as so many bytes in run.spent, which bounds a call on several keys: it takes as long.
local FIELD_BYTES = 512

-- trigger.record_of returns the record that a live trigger key stands for. It returns nil if the key says nothing of
-- the payload: it has its mark, or timerd may not read it.
function trigger.record_of(key, max)
  local value = redis.pcall('GETRANGE', key, 0, max + MARK_BYTES)
  if type(value) == 'table' then
    if not string.find(value.err, 'WRONGTYPE', 1, true) then return nil end
    local fields = redis.pcall('HLEN', key) -- fails for a value of any other type
    if type(fields) ~= 'number' then return 'm:' end
    value = payload.of_hash(key, fields, max)
    local bytes = value and #value or fields <= payload.MAX_FIELDS and max or 0
    run.spent = run.spent + FIELD_BYTES * math.min(fields, payload.MAX_FIELDS) + bytes
    return value and ':' .. value or 'l:'
  end
  run.spent = run.spent + #value
  if may_have_mark(value) then
    local own = trigger.mark(key)
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

-- trigger.follow returns the record of a timer whose key has the value of a new record. With a new TTL too it is
-- another timer, and only a repetition stays; is_same says that the TTL is as before.
function trigger.follow(current, record, is_same)
  if entry.is_repeating(current) then return entry.with_value(current, record) end
  return is_same and guards.keep(current, record) or record
end

-- trigger.upsert makes the index agree with a live trigger key that runs out at the time at. was is its due time in the
-- index, or nil. It returns 1 for a new timer, 2 for a changed due time, else 0. If the key tells no payload, the
-- record of a timer that due has lost is kept.
function trigger.upsert(key, was, at, max)
  local record = trigger.record_of(key, max)
  ttl.follow(key, at)
  if not was then
    index.put(key, at, record or redis.call('HGET', run.data, key) or 'm:', account.ADOPTED)
    return 1
  end
  local current = record and redis.call('HGET', run.data, key)
  if record and current ~= record then
    record = current and trigger.follow(current, record, was == at) or record
    if current ~= record then index.rewrite(key, record) end
  end
  if was == at then return 0 end
  index.redate(key, at)
  return 2
end
