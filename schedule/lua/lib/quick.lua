-- The usual claim: all that is due is as usual, and nothing else is to be done.

-- list_due returns the due timers, their due times in full, and the next due time; or nil if one of them is no key.
local function list_due(of)
  local look = math.min(of.limit, of.most)
  local listed = redis.pcall('ZRANGE', run.due, '0', of.most_text, 'WITHSCORES')
  if listed.err then return nil end
  local members, dues, n = {}, {}, 0
  for i = 1, #listed, 2 do
    local member, due = listed[i], listed[i + 1]
    local at = tonumber(due)
    if n == look or at > of.due_until then return members, dues, at end
    if string.byte(member) == 58 then return nil end
    n = n + 1
    -- Some servers write a round number with an exponent.
    members[n], dues[n] = member, at % 1 == 0 and at % 100000 ~= 0 and at <= LATEST and due or int(at)
  end
  return members, dues, math.huge
end

-- next_after returns the time of the next claim: next_due, or the end of a lease, also of this claim if it takes some.
-- It returns nil if a lease is over, or a firing is owed. In a cluster it leaves out ends of leases, unless something
-- is owed: the scans for due timers find them, and each firing would need one more look.
local function next_after(of, some, next_due)
  local first = tonumber(redis.call('ZRANGE', run.firing, '0', '0', 'WITHSCORES')[2] or math.huge)
  if first <= clock.due() then return nil end
  if not CLUSTER then return math.min(first, some and of.lease_ends or math.huge, next_due) end
  return run.beside_others and first < HELD and math.min(first, next_due) or next_due
end

local NONE = {}

-- own_keys returns the still existing keys of timers, if each is in the ms of its due time; else nil.
local function own_keys(members, dues, still)
  if still == 0 then return NONE end
  local own = {}
  for i = #members, 1, -1 do
    local due = tonumber(dues[i])
    -- Redis may have read the clock for EXISTS before the step did.
    if #own == still or due < clock.due() - 1 then break end
    if ttl.try(members[i]) == due then own[#own + 1] = members[i] end
  end
  return #own == still and own or nil
end

-- may_claim reports whether some timers are all free, by the partition's list of holds, or nil.
local function may_claim(of, list, members, dues)
  local known, is_held = holds.read(list)
  if known < of.generation then return false end
  for i = 1, is_held and #members or 0 do
    if is_held(members[i], tonumber(dues[i])) then return false end
  end
  return true
end

-- read_group adds the records of some timers to those before, nil for none. It returns them, and the bytes left for
-- more; or nil if one is large.
local function read_group(records, members, first, last, may_be_large, left)
  for i = first, may_be_large and last or 0 do
    if redis.call('HSTRLEN', run.data, members[i]) > sizes.LARGE then return nil end
  end
  local group = redis.call('HMGET', run.data, unpack(members, first, last))
  records = records or group
  for i = 1, last - first + 1 do
    local record = group[i] or 'm:'
    records[first + i - 1], left = record, left - #record
  end
  return records, left
end

-- read_records returns the records of timers, the bytes left for more, and the field :?: of data; or nil if they are
-- held or large, or may have to wait in a restored Redis. If there may be large ones among several records, it asks for
-- their sizes first.
local function read_records(of, members, dues)
  local n = #members
  local is_alone = n == 1 and not of.seen_large
  local said = redis.call('HMGET', run.data, ':l:', ':?:', ':h:', is_alone and members[1] or ':l:', ':i:')
  if not restored.is_usual(said[5]) then return nil end
  if (said[3] or of.generation > 0) and not may_claim(of, said[3], members, dues) then return nil end
  local left = of.room
  if is_alone then
    local record = said[4] or 'm:'
    left, of.seen_large = left - #record, #record > sizes.LARGE
    if of.seen_large or left < 0 then return nil end
    return { record }, left, said[2]
  end
  local records
  for first = 1, n, firings.GROUP do
    records, left = read_group(records, members, first, math.min(first + firings.GROUP - 1, n), said[1], left)
    if not records or left < 0 then return nil end
  end
  return records, left, said[2]
end

-- take_first takes the first timers out of due. This costs half of what ZREM does.
local function take_first(count) redis.call('ZREMRANGEBYRANK', run.due, '0', count == 1 and '0' or count - 1) end

-- take claims timers whose keys are gone, but for own. It returns the partition's part of the reply, or nil if another
-- firing has a ref.
local function take(of, members, dues, own, next_due)
  local records, left, contested_until = read_records(of, members, dues)
  if not records then return nil end
  judging.all(members, records)
  local moved = batch.move(members, dues, records, taken.lease_end(of), nil, take_first)
  if not moved then return nil end
  if #own > 0 then redis.pcall('DEL', unpack(own)) end
  claims.note(members, contested_until, next_due)
  of.limit, of.room = of.limit - #members, left
  return { 'next', next_due, 'due', moved }
end

-- claim claims from the partition, and returns its part of the reply; or nil, and then it has changed nothing. leases
-- says that a lease may be over: in a cluster it does not look for one by itself.
function quick.claim(of, leases)
  local members, dues, next_due = list_due(of)
  if not members then return nil end
  -- None of these keys should exist. But in the ms of its due time Redis still has a timer's.
  local owed, waiting = run.prefix .. 'owed', run.prefix .. 'beside'
  local data = next_due == math.huge and run.data or run.prefix -- where nothing waits, data may be left to tidy up
  local still, others = redis.pcall('EXISTS', run.prefix, owed, waiting, members[1] or data, unpack(members, 2)), 0
  if type(still) ~= 'number' then return nil end
  if still > 0 then others = redis.call('EXISTS', owed, waiting) end
  run.beside_others = others > 0
  if not CLUSTER or leases or others > 0 or #members == 0 then next_due = next_after(of, #members > 0, next_due) end
  if not next_due then return nil end
  if #members == 0 then
    if next_due < math.huge then return { 'next', next_due } end
    if still > others then -- there are data
      meta.tidy()
      restored.tidy()
    end
    return { 'next', -1 }
  end
  local own = own_keys(members, dues, still - others)
  if not own then return nil end
  if next_due == math.huge then next_due = -1 end
  return take(of, members, dues, own, next_due)
end
