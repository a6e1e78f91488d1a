--[[ count_firing counts the firings of a page, by the app, module and type of their keys.
It writes nothing.
KEYS    1  the partition's prefix
ARGV    1  cursor; 0 begins
        2  how many firings to look at, roughly
Returns {next cursor, 0 at the end, the counts as tally has them}. A firing that nobody
has claimed, or that was given back, counts as owed. ]]
local page = redis.call('ZSCAN', KEYS[1] .. 'firing', ARGV[1], 'COUNT', ARGV[2])
local refs = page[2]
for i = 1, #refs, 2 do
  local key, lease = string.match(refs[i], '^%d+:%d*:(.*)$'), tonumber(refs[i + 1])
  if key then tally(key, lease >= HELD and HELD_TIMERS or (lease == 0 or lease % 1 ~= 0) and OWED or FIRING) end
end
return { page[1], counts }
