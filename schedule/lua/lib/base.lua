-- The state of one call: index.begin makes it anew, as a library's variables outlive a call. It has
--   time, now, now_text  for clock.lua alone: TIME's reply, the same in unix ms, and that in text once asked for
--   spent                the bytes of values read, about
--   prefix, due, data, firing, firingdata, fired
--                        the partition that index.enter was called for, and the names of its keys
-- and fields that rooms add. No other variable outlives the function that sets it.
local run

-- The payload bytes that a call on several keys reads, about: 2 or 3 ms, as each copy of 256 KiB takes nearly half a
-- millisecond.
local BUDGET = 400000

-- int writes a time in full; Lua by itself would write it in 14 digits. It costs more than most commands: a time that
-- several commands get is written once.
local function int(n) return string.format('%.0f', n) end
