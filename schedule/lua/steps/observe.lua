#!lua flags=allow-oom,allow-cross-slot-keys
--[[ observe takes in the hints of keyspace events, in their order.
KEYS    1  the partition's prefix; or none, for many partitions of one server
ARGV    1  the earliest time of the first of these events, in ms
        2  the part of the time since then in which nothing could happen to their timers, in ms
        then for each partition its prefix, the time since which the caller has heard every event
        of it, in ms, the number of its hints, and for each of these a kind and a timer's key:
        t  touched: the key may live; if it does not, another event says why
        a  audited: the same without an event
        g  gone: deleted, renamed or moved away
        v  evicted
        x  expired: it did run out, whatever the index says
        w  the same, but left alone if its timer is due and its key is certainly gone: the
           caller waits for the claim, and gives it as x before anything newer of its key
        In upper case they are for timers that the index knows already.
Returns for each partition, as far as payloads are not too large, {first due time or -1, owed, adopted, rescheduled,
cancelled, hints, denied, the key of one of those or an empty string, the places of hints that were left alone}, or an
empty array if it is not here as a whole, because its slot is moving; the four after the first count timers. hints is
the number of hints taken in: fewer than given if their payloads are large. The caller gives the rest again. denied
counts the hints without an effect because timerd may not read the key; an expired event counts all the same.
If its reply is lost: the same hints may be given again. An expired event is then explained by the tombstone that it
left, or is too old to prove anything. One that confirmed a contested timer makes it owed the second time. ]]

-- Greatest ages in ms of a tombstone that explains an expired event, and of an event as proof (lib/hints.lua).
local FRESH, OLD = 4000, 3000

-- owe makes timers owed whose expired events have come before the claim.
local function owe(o, keys, dues)
  if #keys == 0 then return end
  local records = redis.call('HMGET', run.data, unpack(keys))
  for i = 1, #keys do records[i] = entry.add_flag(records[i] or 'm:', 'x') end
  owing.list(batch.move(keys, dues, records, '0', firings.add), true)
  o.owed = o.owed + #keys
end

-- look_up returns, for a group's keys, the contested ones, the times at which they are due and fired, and whether all
-- are gone.
local function look_up(names, is_large, kind)
  local contested = {}
  for i = 1, #names do
    contested[i] = ':?:' .. names[i]
    if is_large then contested[i] = redis.call('HEXISTS', run.data, contested[i]) == 1 end
  end
  if not is_large then contested = redis.call('HMGET', run.data, unpack(contested)) end
  local was, fired = redis.call('ZMSCORE', run.due, unpack(names)), redis.call('ZMSCORE', run.fired, unpack(names))
  return contested, was, fired, string.lower(kind) == 'x' and redis.pcall('EXISTS', unpack(names)) == 0
end

-- observe_usual takes in the hint of a key that is neither contested nor known to be gone, by the commands of the group
-- if it is one of the common cases: a new timer, or the expired event of one that is due.
local function observe_usual(o, group, kind, key, due, fired)
  local at, lower = group.are_gone and -2 or ttl.try(key), string.lower(kind)
  local owing_now, ahead = due and due <= clock.due(), at and at > clock.due()
  if lower == 'x' and at == -2 and owing_now then
    group.late[#group.late + 1], group.late_dues[#group.late_dues + 1] = key, int(due)
    if group.is_large then run.spent = run.spent + redis.call('HSTRLEN', run.data, key) end
  elseif lower == 'x' then
    if at ~= -2 or due or clock.real() - tonumber(fired or 0) > o.fresh then
      hints.take(o, kind, key, group.is_large)
    end
  elseif not at then
    hints.touch(o, key, due, at)
  elseif ahead and not due then
    local n = #group.dues
    group.dues[n + 1], group.dues[n + 2] = at, key
    ttl.follow(key, at)
    group.records[n + 1] = key
    group.records[n + 2] = trigger.record_of(key, MAX_PAYLOAD) or redis.call('HGET', run.data, key) or 'm:'
    hints.count(o, 1)
  elseif ahead and not owing_now then
    hints.count(o, trigger.upsert(key, due, at, MAX_PAYLOAD))
  elseif at ~= -2 then
    hints.take(o, kind, key, group.is_large)
  end
end

-- observe_group takes in hints of different keys, in their order, as far as their payloads are not too large. It
-- returns their number. It batches the common cases.
local function observe_group(o, kinds, names)
  local group, taken = { is_large = sizes.may_be_large(), late = {}, late_dues = {}, dues = {}, records = {} }, 0
  local contested, was, fired, are_gone = look_up(names, group.is_large, kinds[1])
  group.are_gone = are_gone
  while taken < #names and run.spent <= BUDGET do
    taken = taken + 1
    local kind, due = kinds[taken], tonumber(was[taken] or nil)
    local lower = string.lower(kind)
    if contested[taken] or lower == 'g' or lower == 'v' then
      hints.take(o, kind, names[taken], group.is_large)
    elseif due or kind == lower then
      observe_usual(o, group, kind, names[taken], due, fired[taken])
    end
  end
  if #group.dues > 0 then index.put_all(group.dues, group.records) end
  owe(o, group.late, group.late_dues)
  return taken
end

-- leave_alone returns the places of the hints that may wait: their timers are due, and their keys are gone. The hints
-- are n pairs behind a place of ARGV.
local function leave_alone(ARGV, behind, n)
  local names, places, left = {}, {}, {}
  for i = 1, n do
    if string.lower(ARGV[behind + 2 * i - 1]) == 'w' then
      names[#names + 1], places[#places + 1] = ARGV[behind + 2 * i], i
    end
  end
  if #names == 0 then return left end
  local was, gone = redis.call('ZMSCORE', run.due, unpack(names)), redis.pcall('EXISTS', unpack(names)) == 0
  for i = 1, #names do
    local is_due = was[i] and tonumber(was[i]) <= clock.due()
    if is_due and (gone or ttl.try(names[i]) == -2) then left[#left + 1] = places[i] end
  end
  return left
end

-- observe_all takes in the hints of a partition but for those left alone, in groups of different keys. It returns how
-- many it has come to.
local function observe_all(o, ARGV, behind, n, left)
  local leaving, given, taken = 1, 0, 0
  while taken == given and given < n and run.spent <= BUDGET do
    local kinds, names, places, seen = {}, {}, {}, {}
    repeat
      given = given + 1
      local kind, key = ARGV[behind + 2 * given - 1], ARGV[behind + 2 * given]
      if left[leaving] == given then
        leaving = leaving + 1
      else
        kinds[#names + 1] = kind == 'w' and 'x' or kind == 'W' and 'X' or kind
        names[#names + 1], places[#places + 1] = key, given
        seen[key] = true
      end
    until #names == firings.GROUP or given == n or seen[ARGV[behind + 2 * given + 2]]
    local done = #names > 0 and observe_group(o, kinds, names) or 0
    taken = done == #names and given or places[done + 1] - 1
  end
  return taken
end

-- observe_in takes in the hints of a partition, n pairs behind a place of ARGV. It returns its part of the reply.
local function observe_in(o, only, ARGV, behind, n)
  index.enter(ARGV[behind - 2])
  o.since = tonumber(ARGV[behind - 1])
  o.owed, o.adopted, o.rescheduled, o.cancelled, o.denied, o.denied_key = 0, 0, 0, 0, 0, ''
  local here = redis.pcall('EXISTS', run.due, run.prefix)
  if type(here) ~= 'number' then return only and here or {} end
  local left = leave_alone(ARGV, behind, n)
  local taken = observe_all(o, ARGV, behind, n, left)
  while left[#left] and left[#left] > taken do left[#left] = nil end
  return { index.head(), o.owed, o.adopted, o.rescheduled, o.cancelled, taken, o.denied, o.denied_key, left }
end

function steps.observe(KEYS, ARGV)
  index.begin()
  local silent = tonumber(ARGV[2])
  local o = { heard = tonumber(ARGV[1]), fresh = FRESH + silent, old = OLD + silent }
  local reply, i = {}, 3
  while i < #ARGV and run.spent <= BUDGET do
    local n = tonumber(ARGV[i + 2])
    local part = observe_in(o, KEYS[1], ARGV, i + 2, n)
    if part.err then return part end
    reply[#reply + 1] = part
    i = i + 3 + 2 * n
  end
  return reply
end
