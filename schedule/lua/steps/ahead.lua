#!lua flags=allow-oom,allow-cross-slot-keys,no-writes
--[[ ahead looks for partitions with times that only a clock ahead can have written. It writes nothing.
ARGV    1  the least time by which that clock was ahead, in ms
        2  how long the longest claim or pause lasts, in ms
        then the hash tags of the partitions
Returns two lists of hash tags: partitions with repetitions whose serials are later than now, because that clock armed
them; and partitions with claims, pauses or tombstones that may be later than now. ]]

-- counts reports whether a sorted set has scores between two others. It reports false if the set is not here, because
-- its slot is moving.
local function counts(key, from, to)
  local n = redis.pcall('ZCOUNT', key, from, to)
  return type(n) == 'number' and n > 0
end

-- is_whole reports whether a partition is here as a whole.
local function is_whole(prefix)
  return type(redis.pcall('EXISTS', prefix .. 'repeat', prefix .. 'firing', prefix .. 'fired', prefix)) == 'number'
end

function steps.ahead(KEYS, ARGV)
  index.begin()
  local by = tonumber(ARGV[1])
  local serials, leases = '(' .. int((clock.real() + by) * 1000), '(' .. int(clock.due() + by + tonumber(ARGV[2]))
  local tombstones = '(' .. int(clock.real() + by + clock.REMEMBER)
  local repeating, others = {}, {}
  for i = 3, #ARGV do
    local prefix = PREFIX .. ARGV[i] .. SUFFIX -- never exists, see index.lua
    -- Most partitions of a cluster have neither, and are asked once for both.
    local some = redis.pcall('EXISTS', prefix .. 'repeat', prefix .. 'firing') ~= 0
    local armed = some and counts(prefix .. 'repeat', serials, '+inf')
    local claimed = some and counts(prefix .. 'firing', leases, '(' .. HELD_TEXT)
      or counts(prefix .. 'fired', tombstones, '+inf')
    if (armed or claimed) and is_whole(prefix) then
      if armed then repeating[#repeating + 1] = ARGV[i] end
      if claimed then others[#others + 1] = ARGV[i] end
    end
  end
  return { repeating, others }
end
