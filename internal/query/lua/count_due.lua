#!lua flags=allow-oom,allow-cross-slot-keys,no-writes
--[[ count_due counts the pending timers of many partitions of one server by due time. It writes
nothing.
ARGV    1  the number of times that follow, at least two
        then the times in unix ms, ascending
        then the hash tags of the partitions
Returns {partitions left out because their slots are moving, then for each time but the last the
number of timers due from then to before the next one}. ]]
local n = tonumber(ARGV[1])
local moving, counts = 0, {}
for i = 1, n - 1 do counts[i] = 0 end

for i = n + 2, #ARGV do
  local prefix = PREFIX .. ARGV[i] .. SUFFIX -- never exists, see index.lua
  local due_key = prefix .. 'due'
  local here = redis.pcall('EXISTS', due_key, prefix)
  if type(here) == 'table' then
    moving = moving + 1
  elseif here > 0 then
    local left, j = redis.call('ZCOUNT', due_key, ARGV[2], '(' .. ARGV[n + 1]), 1
    while left > 0 and j < n do
      local due = redis.call('ZCOUNT', due_key, ARGV[j + 1], '(' .. ARGV[j + 2])
      counts[j], left, j = counts[j] + due, left - due, j + 1
    end
  end
end
return { moving, unpack(counts) }
