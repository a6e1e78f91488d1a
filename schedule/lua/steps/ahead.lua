#!lua flags=allow-oom,allow-cross-slot-keys,no-writes
-- include: names clock
--[[ ahead looks for partitions with repetitions whose serials are of later than now: their next
occurrences were armed by a clock that was ahead. It writes nothing.
ARGV    1  by how many ms, at least
        then the hash tags of the partitions
Returns the hash tags of those that have some. ]]
local over, out = '(' .. int((read_clock() + tonumber(ARGV[1])) * 1000), {}
for i = 2, #ARGV do
  local prefix = PREFIX .. ARGV[i] .. SUFFIX -- never exists, see index.lua
  local here = redis.pcall('EXISTS', prefix .. 'repeat', prefix)
  if type(here) ~= 'table' and here > 0 and redis.call('ZCOUNT', prefix .. 'repeat', over, '+inf') > 0 then
    out[#out + 1] = ARGV[i]
  end
end
return out
