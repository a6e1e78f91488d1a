#!lua flags=allow-oom
--[[ hold_release releases held timers of a namespace that no other hold covers: they are owed from then on, with their
due times.
KEYS    1  the partition's prefix
ARGV    1  the generation of the list of holds that the caller goes by
     2, 3, 4  app, module and type of the namespace, empty for any
     5, 6  where to begin: 0 and 0, or from the last answer
        7  the greatest number of timers to release
        8  the last due time of timers released as the following says; what became due later
           is owed at once, and becomes no dead letter
        9  the first time at which somebody may claim the first of them, in ms, perhaps with a
           fraction; 0 for at once
       10  the time from each to the next, in ms
       11  1 if they become dead letters, else 0
       then the rivals, see holds.lua
Returns {the number of timers released, the number of these with times of their own, the place to go on: two numbers as
text, 1 if these were the last ones, else 0, and the number of timers among those looked at that another hold keeps}; or
{-1} if the partition's copy of the list is of another generation. While the namespace is in that list until the resume
is over, the FREED in the score (scores.lua) tells claims that a timer was released.
If its reply is lost: the timers are released. The times that they have are used up. ]]

-- mark_dead marks timers due until a cutoff as dead letters. It returns the number that there was room for.
local function mark_dead(refs, cutoff)
  local fits = sizes.fitting(run.firingdata, refs, BUDGET)
  local records, marked = redis.call('HMGET', run.firingdata, unpack(refs, 1, fits)), {}
  for i = 1, fits do
    if tonumber(string.match(refs[i], '^%d+')) <= cutoff then
      marked[#marked + 1], marked[#marked + 2] = refs[i], entry.add_flag(records[i] or 'm:', 'h')
    end
  end
  if #marked > 0 then index.rewrite_firings(marked) end
  return fits
end

-- free_some frees count timers at once; but if first is not 0, the timers due until the cutoff at times of their own:
-- the first at that time, each further one an interval later. It returns the number of timers with such times.
local function free_some(refs, count, cutoff, at_once, first, interval)
  local freed, timed = {}, 0
  for i = 1, count do
    local at = at_once
    if first > 0 and tonumber(string.match(refs[i], '^%d+')) <= cutoff then
      at = scores.at(first + timed * interval, FREED)
      timed = timed + 1
    end
    freed[2 * i - 1], freed[2 * i] = at, refs[i]
  end
  if count > 0 then
    index.rescore(freed)
    wake.at(timed == count and math.floor(first) or 0)
  end
  return timed
end

function steps.hold_release(KEYS, ARGV)
  index.open(KEYS[1])
  if not holds.is_current(ARGV[1]) then return { -1 } end
  local cutoff, from, passed = tonumber(ARGV[8]), tonumber(ARGV[5]), tonumber(ARGV[6])
  local refs, score, skip, last, kept = held.find(ARGV, 12, ARGV[2], ARGV[3], ARGV[4], from, passed, tonumber(ARGV[7]),
    cutoff)
  local count = #refs
  if count > 0 and ARGV[11] == '1' then
    count = mark_dead(refs, cutoff)
    -- The rest is found again from the same place.
    if count < #refs then score, skip, last, kept = from, passed, false, 0 end
  end
  -- If a rival's cutoff covers it too, the next claim would hold an owed timer again.
  local at_once = (ARGV[11] == '1' or #ARGV > 11) and scores.at(0, FREED) or '0'
  local timed = free_some(refs, count, cutoff, at_once, tonumber(ARGV[9]), tonumber(ARGV[10]))
  return { count, timed, int(score), int(skip), last and 1 or 0, kept }
end
