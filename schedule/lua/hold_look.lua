--[[ hold_look looks for held timers in many partitions of one server. It writes nothing.
ARGV    1  up to which due time, in ms, timers that nobody has looked at yet are to be told of
        then the hash tags of the partitions
Returns for each partition that has something its hash tag and how many timers are held
there, with half a one more if there are others that became due until then and that no claim
has looked at, as text; -1 for one that is not here as a whole, because its slot is moving. ]]
local now, out = read_clock(), {}
local cutoff = math.min(tonumber(ARGV[1]), now)
for i = 2, #ARGV do
  local prefix = PREFIX .. ARGV[i] .. SUFFIX -- never exists, as in common.lua
  local due, firing = prefix .. 'due', prefix .. 'firing'
  local here = redis.pcall('EXISTS', due, firing, prefix)
  local count
  if type(here) == 'table' then
    count = -1
  elseif here > 0 then
    count = redis.call('ZCOUNT', firing, HELD_TEXT, '+inf')
    local first = redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')[2]
    local lease = redis.call('ZRANGE', firing, 0, 0, 'WITHSCORES')[2]
    if tonumber(first or now + 1) <= cutoff or tonumber(lease or 1) == 0 then count = count + 0.5 end
  end
  if count and count ~= 0 then out[#out + 1], out[#out + 2] = ARGV[i], string.format('%.1f', count) end
end
return out
