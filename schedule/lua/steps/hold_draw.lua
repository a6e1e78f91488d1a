#!lua flags=allow-oom
--[[ hold_draw draws times at which timers of a resume at a rate may fire. Nobody draws the same times again.
KEYS    1  the prefix of the partition that has the list of holds
ARGV    1  the namespace
        2  the earliest time for the first one, in ms
        3  the number of times
        4  the interval between them, in ms, perhaps with a fraction
        5  up to when the first one may lie, in ms: else nothing is drawn
Returns the first time, as text with a fraction, or an empty text.
If its reply is lost: the times are drawn, and nothing fires at them. ]]

function steps.hold_draw(KEYS, ARGV)
  index.open(KEYS[1])
  local holds_key, field = run.prefix .. 'holds', ':next:' .. ARGV[1]
  local first = math.max(tonumber(redis.call('HGET', holds_key, field) or 0), tonumber(ARGV[2]))
  if first > tonumber(ARGV[5]) then return '' end
  redis.call('HSET', holds_key, field, string.format('%.3f', first + tonumber(ARGV[3]) * tonumber(ARGV[4])))
  return string.format('%.3f', first)
end
