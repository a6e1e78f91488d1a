#!lua flags=allow-oom,allow-cross-slot-keys,no-writes
--[[ scan_due looks for due timers in many partitions of one server of a cluster. It
writes nothing.
ARGV    1  up to when, in ms from now, what is due counts
        2  lease in ms
        then the hash tags of the partitions
Returns {this server's clock in unix ms, pending timers, firings but for those held, timers
set aside because their keys cannot be read, and because NATS refuses them, timers that are
held, then for each partition with something to claim its hash tag, when: a due time or
the end of a lease in ms, 0 for at once, or -1 if the partition is not here as a whole,
because its slot is moving, and when the first lease ends, or -1. For a partition that has lost members
or records of timers or firings there is also its hash tag, -2, and how many at least}. Old tombstones count as something to claim at once: a claim
removes them. What is held counts as something to claim in the far future. ]]

-- first returns the lowest score of a sorted set, or nil.
local function first(key) return tonumber(redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]) end

-- lost returns by how many the records of a partition are other than its pending timers and its firings.
local function lost(prefix, pending, firing)
  local data = prefix .. 'data'
  local more = redis.call('HLEN', data) - pending
  if more ~= 0 then more = meta.without(data, more) end
  return math.abs(more) + math.abs(redis.call('HLEN', prefix .. 'firingdata') - firing)
end

function steps.scan_due(KEYS, ARGV)
  index.begin()
  local now = run.now
  local horizon, old = now + tonumber(ARGV[1]), now - clock.REMEMBER - tonumber(ARGV[2])
  local total, firings, asides, refusals, held, out = 0, 0, 0, 0, 0, { now, 0, 0, 0, 0, 0 }

  for i = 3, #ARGV do
    local prefix = PREFIX .. ARGV[i] .. SUFFIX -- never exists, see index.lua
    local due, firing, fired = prefix .. 'due', prefix .. 'firing', prefix .. 'fired'
    local aside, refused = prefix .. 'aside', prefix .. 'refused'
    local here, at, ends = redis.pcall('EXISTS', due, firing, fired, aside, refused, prefix)
    local pending_timers, all_firings = 0, 0
    if type(here) == 'table' then
      at = -1
    elseif here > 0 then
      at = first(due)
      local lease, tombstone
      if here > 1 or not at then lease, tombstone = first(firing), first(fired) end
      local pending = at and 1 or 0
      if at then pending_timers = redis.call('ZCARD', due) end
      total = total + pending_timers
      if lease then
        local still = redis.call('ZCOUNT', firing, HELD_TEXT, '+inf')
        all_firings = redis.call('ZCARD', firing)
        firings, held = firings + all_firings - still, held + still
        at, ends = math.min(at or lease, lease), lease
      end
      if tombstone and tombstone < old then at = 0 end
      if here > pending + (lease and 1 or 0) + (tombstone and 1 or 0) then
        asides, refusals = asides + redis.call('ZCARD', aside), refusals + redis.call('ZCARD', refused)
      end
    end
    local missing = type(here) == 'number' and lost(prefix, pending_timers, all_firings) or 0
    if missing > 0 then out[#out + 1], out[#out + 2], out[#out + 3] = ARGV[i], -2, missing end
    if at and at <= horizon then out[#out + 1], out[#out + 2], out[#out + 3] = ARGV[i], at, ends or -1 end
  end
  out[2], out[3], out[4], out[5], out[6] = total, firings, asides, refusals, held
  return out
end
