#!lua flags=no-writes
-- include: clock hold score scores tally
--[[ count_firing counts the firings of a page, by the app, module and type of their keys. It
writes nothing.
KEYS    1  the partition's prefix
ARGV    1  cursor; 0 begins
        2  how many firings to look at, roughly
Returns {next cursor, 0 at the end, the counts as tally has them}. A firing that nobody has
claimed counts as owed, or as held if the next claim holds it, and as firing if it was given
back though perhaps published. ]]
local page = redis.call('ZSCAN', KEYS[1] .. 'firing', ARGV[1], 'COUNT', ARGV[2])
local refs = page[2]
now = read_clock()
local _, is_held = read_holds(redis.call('HGET', KEYS[1] .. 'data', ':h:') or nil)

-- state_of returns the state of a firing.
local function state_of(ref, key, score)
  if not is_free(score) then return FIRING end
  return (score >= HELD or is_held and is_held(key, due_of_free(ref, score))) and HELD_TIMERS or OWED
end

for i = 1, #refs, 2 do
  local key, score = string.match(refs[i], '^%d+:%d*:(.*)$'), tonumber(refs[i + 1])
  if key then tally(key, state_of(refs[i], key, score)) end
end
return { page[1], counts }
