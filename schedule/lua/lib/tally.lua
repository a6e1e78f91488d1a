-- tally counts a timer for the app:module:type that it is of. The counts are five elements
-- each: that name, and how many are pending, owed, firing and held.
local PENDING, OWED, FIRING, HELD_TIMERS = 1, 2, 3, 4
local counts, counted_at = {}, {}
local function tally(key, state)
  local name = string.match(key, '^[^:]+:[^:]+:[^:]+')
  if not name then return end
  local at = counted_at[name]
  if not at then
    at = #counts + 1
    counted_at[name] = at
    counts[at] = name
    for i = PENDING, HELD_TIMERS do counts[at + i] = 0 end
  end
  counts[at + state] = counts[at + state] + 1
end
