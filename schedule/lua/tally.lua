-- tally counts a timer for the app:module:type that it is of. The counts are four elements
-- each: that name, and how many are pending, owed and firing.
local PENDING, OWED, FIRING = 1, 2, 3
local counts, counted_at = {}, {}
local function tally(key, state)
  local name = string.match(key, '^[^:]+:[^:]+:[^:]+')
  if not name then return end
  local at = counted_at[name]
  if not at then
    at = #counts + 1
    counted_at[name] = at
    counts[at], counts[at + PENDING], counts[at + OWED], counts[at + FIRING] = name, 0, 0, 0
  end
  counts[at + state] = counts[at + state] + 1
end
