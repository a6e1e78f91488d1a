#!lua flags=allow-oom,allow-cross-slot-keys,no-writes
--[[ ahead looks for partitions with times that only a clock can have written that was ahead. It writes
nothing.
ARGV    1  by how many ms that clock was ahead, at least
        2  how long the longest claim or pause lasts, in ms
        then the hash tags of the partitions
Returns two lists of hash tags: of partitions with repetitions whose serials are of later than now,
as their next occurrences were armed by that clock; and of partitions with claims, pauses or tombstones that
may be of later than now. ]]

function steps.ahead(KEYS, ARGV)
  local now, by = clock.read(), tonumber(ARGV[1])
  local serials, leases = '(' .. int((now + by) * 1000), '(' .. int(now + by + tonumber(ARGV[2]))
  local tombstones = '(' .. int(now + by + clock.REMEMBER)
  local repeating, others = {}, {}
  for i = 3, #ARGV do
    local prefix = PREFIX .. ARGV[i] .. SUFFIX -- never exists, see index.lua
    local here = redis.pcall('EXISTS', prefix .. 'repeat', prefix .. 'firing', prefix .. 'fired', prefix)
    if type(here) ~= 'table' and here > 0 then
      if redis.call('ZCOUNT', prefix .. 'repeat', serials, '+inf') > 0 then repeating[#repeating + 1] = ARGV[i] end
      if redis.call('ZCOUNT', prefix .. 'firing', leases, '(' .. HELD_TEXT) > 0
        or redis.call('ZCOUNT', prefix .. 'fired', tombstones, '+inf') > 0 then
        others[#others + 1] = ARGV[i]
      end
    end
  end
  return { repeating, others }
end
