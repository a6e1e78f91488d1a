-- may_state_attempt tells whether a payload may state its attempt: it may be that of
-- a JSON object with a field attempt, written with escapes or without.
local function may_state_attempt(payload)
  return string.find(payload, 'attempt', 1, true) or string.find(payload, '\\u', 1, true)
end

-- id_tombstone returns the tombstone that keeps retries from getting the id of a
-- firing, or nil if none can get it: retries have attempts above 1. Long records are not
-- searched: of some that takes Redis 15 ns a byte.
local MOST_SEARCHED = 1024
local function id_tombstone(key, due, attempt, record)
  if attempt == '1' or attempt == '' and #record <= MOST_SEARCHED and not may_state_attempt(record) then return nil end
  return ':i:' .. due .. ':' .. key
end

-- attempt_of returns the attempt that a record states, or an empty string.
local function attempt_of(record)
  if string.byte(record) == 58 then return '' end -- as nearly all do
  return string.match(record, '^%d*')
end

-- add_tombstones adds those of a firing, whose due time is given in text, to the
-- arguments of a ZADD.
local function add_tombstones(arguments, key, due, attempt, record)
  local n = #arguments
  arguments[n + 1], arguments[n + 2] = now_text, key
  local id = id_tombstone(key, due, attempt, record)
  if id then arguments[n + 3], arguments[n + 4] = int(now + REMEMBER), id end
end
