#!lua flags=allow-oom,allow-cross-slot-keys
--[[ hold_redraw holds timers of a namespace again, in many partitions of one server: those with times of a resume at a
rate that were drawn by a clock that was ahead.
ARGV    1  the generation of the list of holds that the caller goes by
     2, 3, 4  app, module and type of the namespace, empty for any
        5  the last due time of timers with such times
        6  the longest time from now to one drawn by a correct clock, in ms
        7  the number of timers of each partition to pass over
        8  the number of timers of each to look at
        then the hash tags of the partitions
Returns {the number of timers held again, the greatest number looked at in one partition, the number of partitions that
are not here as a whole, or have another list}.
If its reply is lost: they are held. ]]

function steps.hold_redraw(KEYS, ARGV)
  index.begin()
  local cutoff = tonumber(ARGV[5])
  local after, moved, looked, missing = '(' .. int(clock.due() + tonumber(ARGV[6])), 0, 0, 0

  -- is_drawn reports whether a firing has its time from a draw. A shifted timer without a trigger key waits for its own
  -- due time.
  local function is_drawn(ref, score)
    local due, a, m, t = string.match(ref, '^(%d+):%d*:([^:]*):([^:]*):([^:]*):')
    return a and score % 1 == FREED and tonumber(due) <= cutoff and tonumber(due) ~= math.floor(score)
      and (ARGV[2] == '' or ARGV[2] == a) and (ARGV[3] == '' or ARGV[3] == m) and (ARGV[4] == '' or ARGV[4] == t)
  end

  for i = 9, #ARGV do
    index.enter(PREFIX .. ARGV[i] .. SUFFIX) -- never exists, see index.lua
    local here = redis.pcall('EXISTS', run.firing, run.prefix)
    if type(here) == 'table' then
      missing = missing + 1
    elseif here > 0 then
      local listed = redis.call('ZRANGE', run.firing, after, '(' .. HELD_TEXT, 'BYSCORE', 'LIMIT', ARGV[7], ARGV[8],
        'WITHSCORES')
      local held = {}
      for j = 1, #listed, 2 do
        if is_drawn(listed[j], tonumber(listed[j + 1])) then
          held[#held + 1], held[#held + 2] = int(HELD + tonumber(string.match(listed[j], '^%d+'))), listed[j]
        end
      end
      if #held > 0 and not holds.is_current(ARGV[1]) then
        missing = missing + 1
      elseif #held > 0 then
        index.rescore(held)
        moved = moved + #held / 2
      end
      looked = math.max(looked, #listed / 2)
    end
  end
  return { moved, looked, missing }
end
