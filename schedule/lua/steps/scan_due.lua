#!lua flags=allow-oom,allow-cross-slot-keys,no-writes
--[[ scan_due looks for due timers in many partitions of one server of a cluster. It writes nothing.
ARGV    1  the last due time of timers that count, in ms from now
        2  lease in ms
        then the hash tags of the partitions
Returns {this server's clock in unix ms, pending timers, firings but for those held, timers set aside because their keys
cannot be read, because NATS refuses them, and because their guards cannot be read, timers that are held, then three
values for each partition with something to claim:
  its hash tag
  its time: a due time or the end of a lease, in ms; 0 for at once; or -1 if the partition is not
  here as a whole, because its slot is moving
  the end of the first lease, or -1
For a partition that has lost members or records of timers or firings there are three more: its hash tag, -2, and the
smallest number that it can have lost}. Old tombstones count as something to claim at once: a claim removes them. A held
timer counts as something to claim in the far future. ]]

-- first returns the lowest score of a sorted set, or nil.
local function first(key) return tonumber(redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]) end

-- records returns the number of a hash's records, and its difference from the members of its sorted set.
local function records(hash, members)
  local fields = redis.call('HLEN', hash)
  local more = fields - members
  if more ~= 0 then more = meta.without(hash, more) end -- firingdata has no such fields
  return fields, math.abs(more)
end

-- one returns 1 for an existing key.
local function one(there) return there and 1 or 0 end

-- timers returns the number of keys of timers that exist, 0 to 2, and the number of lost members or records. at is the
-- first due time, or nil.
local function timers(o, k, at)
  local waiting = at and redis.call('ZCARD', k.due) or 0
  local fields, missing = records(k.data, waiting)
  o.pending = o.pending + waiting
  return one(at) + one(fields > 0), missing
end

-- leases is the same for firings. It returns the end of the first lease, or nil, before.
local function leases(o, k)
  local ends = first(k.firing)
  local all = ends and redis.call('ZCARD', k.firing) or 0
  local fields, missing = records(k.firingdata, all)
  local still = ends and redis.call('ZCOUNT', k.firing, HELD_TEXT, '+inf') or 0
  o.firings, o.held = o.firings + all - still, o.held + still
  return ends, one(ends) + one(fields > 0), missing
end

-- scan looks at a partition. Its keys are named in k, and here is the number of keys that exist. It looks for what most
-- partitions have first, and ends when it has seen as many keys. It adds to the counts o. It returns the time at which
-- something is to be claimed, or nil; the time at which the first lease ends, or nil; and the number of lost members or
-- records.
local function scan(o, k, here)
  local due, seen, missing = first(k.due), 0, 0
  if due then seen, missing = timers(o, k, due) end
  if here == seen then return due, nil, missing end
  local tombstone = first(k.fired)
  local at = tombstone and tombstone < o.old and 0 or due
  here = here - one(tombstone)
  if here == seen then return at, nil, missing end
  if not due then seen, missing = timers(o, k) end
  local ends, others, lost = leases(o, k)
  if ends then at = math.min(at or ends, ends) end
  if here > seen + others then
    local unread = redis.call('ZCOUNT', k.refused, '-inf', '(0')
    o.asides, o.unread = o.asides + redis.call('ZCARD', k.aside), o.unread + unread
    o.refused = o.refused + redis.call('ZCARD', k.refused) - unread
  end
  return at, ends, missing + lost
end

function steps.scan_due(KEYS, ARGV)
  index.begin()
  local now = clock.due()
  local horizon, out = now + tonumber(ARGV[1]), { now, 0, 0, 0, 0, 0, 0 }
  local o = {
    pending = 0, firings = 0, asides = 0, refused = 0, unread = 0, held = 0,
    old = clock.real() - clock.REMEMBER - tonumber(ARGV[2]),
  }
  for i = 3, #ARGV do
    local prefix = PREFIX .. ARGV[i] .. SUFFIX -- never exists, see index.lua
    local due, data, firing, firingdata = prefix .. 'due', prefix .. 'data', prefix .. 'firing', prefix .. 'firingdata'
    local fired, aside, refused = prefix .. 'fired', prefix .. 'aside', prefix .. 'refused'
    local here = redis.pcall('EXISTS', due, data, firing, firingdata, fired, aside, refused, prefix)
    local at, ends, missing = nil, nil, 0
    if type(here) == 'table' then
      at = -1
    elseif here > 0 then
      at, ends, missing = scan(o, {
        due = due, data = data, firing = firing, firingdata = firingdata, fired = fired, aside = aside,
        refused = refused,
      }, here)
    end
    if missing > 0 then out[#out + 1], out[#out + 2], out[#out + 3] = ARGV[i], -2, missing end
    if at and at <= horizon then out[#out + 1], out[#out + 2], out[#out + 3] = ARGV[i], at, ends or -1 end
  end
  out[2], out[3], out[4], out[5], out[6], out[7] = o.pending, o.firings, o.asides, o.refused, o.unread, o.held
  return out
end
