#!lua flags=allow-oom,allow-cross-slot-keys,no-writes
--[[ scan_heads looks for due timers in many partitions of one server of a cluster, as scan_due does, but without the
counts and old entries. To ask for a number takes half as long as to ask for the first entry. It writes nothing.
ARGV    1  the hash tags of the partitions, one after the other
        2  the last due time of timers that count, in ms from now
        3  the last end of leases that count, in ms from now; without it none is looked for
Returns {this server's clock in unix ms, then for each partition with something to claim its hash tag, its time: a due
time or the end of a lease in ms, 0 for at once, or -1 if the partition is not here, and the end of the first lease, or
-1}. ]]

local DUE, FIRING = SUFFIX .. 'due', SUFFIX .. 'firing'

-- first returns the lowest score of a sorted set, or an infinite one if nothing counts, or -1.
local function first(key, many)
  if type(many) ~= 'number' then return -1 end
  return many > 0 and tonumber(redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]) or math.huge
end

function steps.scan_heads(KEYS, ARGV)
  index.begin()
  local now, tags = clock.due(), ARGV[1]
  local horizon, lease_horizon = int(now + tonumber(ARGV[2])), ARGV[3] and int(now + tonumber(ARGV[3]))
  local out, n = { now }, 1

  for i = 1, #tags, TAG_LETTERS do
    local begin = PREFIX .. string.sub(tags, i, i + TAG_LETTERS - 1)
    local due, firing = begin .. DUE, begin .. FIRING
    local waiting = redis.pcall('ZCOUNT', due, '-inf', horizon)
    local leased = lease_horizon and redis.pcall('ZCOUNT', firing, '-inf', lease_horizon) or 0
    if waiting ~= 0 or leased ~= 0 then
      local ends = first(firing, leased)
      out[n + 1], out[n + 2] = string.sub(tags, i, i + TAG_LETTERS - 1), math.min(first(due, waiting), ends)
      out[n + 3] = ends < math.huge and ends or -1
      n = n + 3
    end
  end
  return out
end
