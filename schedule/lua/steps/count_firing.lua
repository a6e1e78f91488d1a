#!lua flags=no-writes
--[[ count_firing counts the firings of a page, by the app, module and type of their keys. It writes nothing.
KEYS    1  the partition's prefix
ARGV    1  cursor; 0 begins
        2  the number of firings to look at, roughly
Returns {next cursor, 0 at the end, the counts as tally has them}. A firing that nobody has claimed counts as owed, or
as held if the next claim holds it, and as firing if it was given back though perhaps published. ]]

function steps.count_firing(KEYS, ARGV)
  index.open(KEYS[1])
  tally.begin()
  local page = redis.call('ZSCAN', run.firing, ARGV[1], 'COUNT', ARGV[2])
  local refs = page[2]
  local is_held = holds.of(run.data)

  -- states.of returns the state of a firing.
  local function state_of(ref, key, score)
    if not scores.is_free(score) then return tally.FIRING end
    return (score >= HELD or is_held and is_held(key, scores.due_of_free(ref, score))) and tally.HELD_TIMERS
      or tally.OWED
  end

  for i = 1, #refs, 2 do
    local key, score = string.match(refs[i], '^%d+:%d*:(.*)$'), tonumber(refs[i + 1])
    if key then tally.count(key, state_of(refs[i], key, score)) end
  end
  return { page[1], run.counts }
end
