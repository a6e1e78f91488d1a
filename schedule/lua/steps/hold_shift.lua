#!lua flags=allow-oom
--[[ hold_shift sets held timers of a namespace again that no other hold covers, each later by a shift: with their
trigger keys, or beside newer timers of these.
KEYS    1  the partition's prefix
ARGV    1  the generation of the list of holds that the caller goes by
     2, 3, 4  app, module and type of the namespace, empty for any
     5, 6  where to begin: 0 and 0, or from the last answer
        7  the greatest number of timers
        8  the last due time of timers to set again; what became due later is owed at once
        9  the shift, in ms
        then the rivals, see holds.lua
Returns {the number of timers released, 0, the place to go on: two numbers as text, 1 if these were the last ones, else
0, and the number of timers among those looked at that another hold keeps}; or {-1} if the partition's copy of the list
is of another generation.
If its reply is lost: they are set, and no longer held. ]]

function steps.hold_shift(KEYS, ARGV)
  index.open(KEYS[1])
  if not holds.is_current(ARGV[1]) then return { -1 } end
  local cutoff, by, soonest = tonumber(ARGV[8]), tonumber(ARGV[9]), nil
  local refs, score, skip, last, kept = held.find(ARGV, 10, ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5]),
    tonumber(ARGV[6]), tonumber(ARGV[7]), cutoff)

  -- shift sets one timer again. Where that cannot be, because its new time is over or too many wait beside its key's
  -- newer timer, it is owed, and not to be claimed before that time.
  local function shift(ref)
    local was, attempt, key = string.match(ref, '^(%d+):(%d*):(.*)$')
    local due, record = tonumber(was) + by, entry.renewed(redis.call('HGET', run.firingdata, ref) or 'm:')
    local at = due > clock.due() and beside.rearm(key, due, attempt, record)
    if not at then
      local owed = firings.add_retry(key, due, record, 0)
      at = due > clock.due() and tonumber(string.match(owed, '^%d+')) or 0
      index.rescore({ scores.at(at, FREED), owed })
    end
    soonest = math.min(soonest or at, at)
    index.end_firings({ ref }, true)
  end

  local count = #refs
  if count > 0 then
    count = sizes.fitting(run.firingdata, refs, BUDGET)
    if count < #refs then score, skip, last, kept = tonumber(ARGV[5]), tonumber(ARGV[6]), false, 0 end
  end
  for i = 1, count do
    if tonumber(string.match(refs[i], '^%d+')) > cutoff then
      index.rescore({ #ARGV > 9 and scores.at(0, FREED) or '0', refs[i] }) -- as hold_release
      soonest = 0
    else
      shift(refs[i])
    end
  end
  if soonest then wake.at(soonest) end
  return { count, 0, int(score), int(skip), last and 1 or 0, kept }
end
