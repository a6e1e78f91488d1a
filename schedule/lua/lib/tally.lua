-- The counts are five elements for each app:module:type: that name, and its pending, owed, firing and held timers.
tally.PENDING, tally.OWED, tally.FIRING, tally.HELD_TIMERS = 1, 2, 3, 4

-- begin begins a call that counts, in run.counts.
function tally.begin() run.counts, run.counted_at = {}, {} end

-- count counts a timer for the app:module:type that it is of.
function tally.count(key, state)
  local name = string.match(key, '^[^:]+:[^:]+:[^:]+')
  if not name then return end
  local at = run.counted_at[name]
  if not at then
    at = #run.counts + 1
    run.counted_at[name] = at
    run.counts[at] = name
    for i = tally.PENDING, tally.HELD_TIMERS do run.counts[at + i] = 0 end
  end
  run.counts[at + state] = run.counts[at + state] + 1
end
