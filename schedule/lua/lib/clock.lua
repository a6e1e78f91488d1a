-- How long a tombstone is kept, in ms.
local REMEMBER = 60000

-- int writes a time in full; Lua by itself would write it in 14 digits. It costs more
-- than most commands: a time that several commands get is written once.
local function int(n) return string.format('%.0f', n) end

-- read_clock returns the time of this server in unix ms, and TIME's reply.
local function read_clock()
  local t = redis.call('TIME')
  return tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000), t
end

-- The time of the call, and the same in text. Whoever reads the clock sets them.
local now, now_text
