#!lua flags=allow-oom,allow-cross-slot-keys,no-writes
--[[ calls adds up the counts of calls.count over many partitions of one server of a cluster.
It writes nothing.
ARGV    the hash tags of the partitions
Returns {calls of timer_set, of timer_cancel, partitions left out because their slots are moving}. ]]
local set, cancelled, moving = 0, 0, 0
for i = 1, #ARGV do
  local prefix = PREFIX .. ARGV[i] .. SUFFIX -- never exists, see index.lua
  local here = redis.pcall('EXISTS', prefix .. 'calls', prefix)
  if type(here) == 'table' then
    moving = moving + 1
  elseif here > 0 then
    local counts = redis.call('ZMSCORE', prefix .. 'calls', 'timer_set', 'timer_cancel')
    set = set + tonumber(counts[1] or 0)
    cancelled = cancelled + tonumber(counts[2] or 0)
  end
end
return { set, cancelled, moving }
