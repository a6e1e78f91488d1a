-- How many bytes of payload a call on several keys reads, about: 2 or 3 ms, as each
-- copy of a payload of 256 KiB takes nearly half a millisecond.
local BUDGET = 400000
