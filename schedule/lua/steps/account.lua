#!lua flags=allow-oom,allow-cross-slot-keys,no-writes
--[[ account reads the accounts of many partitions of one server, and compares each with its timers. It writes nothing.
ARGV    the hash tags of the partitions
Returns {the sums of the counts of the accounts that have begun, each kind with its sum, and i with the firings whose
events may be stored; the numbers of timers of these partitions that are pending, held, owed, firing, parked and
contested; the number of partitions with timers or counts but without an account; the number of those not here as a
whole, because their slots are moving; the time at which the first account began, or 0; then for each partition that
differs its hash tag and the difference: opening + in - out - there}. ]]

-- Limit of the members of due looked at to find the contested ones.
local MOST_LOOKED = 1000

-- contested returns the number of contested or dismissed timers in due.
local function contested()
  if tonumber(redis.call('HGET', run.data, ':?:') or 0) < clock.real() then return 0 end
  local n, members = 0, redis.call('ZRANGE', run.due, '-inf', int(clock.due() + 2 * contest.GRACE), 'BYSCORE', 'LIMIT',
    0, MOST_LOOKED)
  for i = 1, #members do
    if string.find(members[i], '^:[?d]:') then n = n + 1 end
  end
  return n
end

-- add_states adds up the timers by state. Each is in one. Most partitions have none in due, or none in firing. parks
-- says that some may be parked.
local function add_states(there, sums, due, firing, parks)
  local disputed, aside, late, held, owed, refused = 0, 0, 0, 0, 0, 0
  if due > 0 then
    disputed = contested()
    if parks then aside = math.min(redis.call('ZCARD', run.prefix .. 'aside'), due - disputed) end
    late = math.min(redis.call('ZCOUNT', run.due, '-inf', clock.due_text()), due - disputed - aside)
  end
  if firing > 0 then
    held, owed = redis.call('ZCOUNT', run.firing, HELD_TEXT, '+inf'), redis.call('ZCOUNT', run.firing, '-inf', 0)
    refused = math.min(redis.call('ZCARD', run.prefix .. 'refused'), firing - held - owed)
  end
  local states = {
    due - disputed - aside - late, held, late + owed, firing - held - owed - refused, aside + refused, disputed,
  }
  for i = 1, #states do there[i] = there[i] + states[i] end
  sums.i = (sums.i or 0) + firing - held - owed
end

-- add adds up the account of a partition, and returns its difference; nil if timers or counts lack an account. sets is
-- the result of balance.look.
local function add(t, sets)
  local counts, opening, change = balance.read()
  if not opening and #counts == 0 and redis.call('EXISTS', run.due, run.firing) == 0 then return 0 end
  if not opening then return nil end
  local due, firing, parks = balance.there(sets)
  add_states(t.there, t.sums, due, firing, parks)
  for i = 1, #counts, 2 do
    local kind, count = counts[i], tonumber(counts[i + 1])
    if kind ~= balance.BEGAN then
      t.sums[kind] = (t.sums[kind] or 0) + count
    elseif t.began == 0 or count < t.began then
      t.began = count
    end
  end
  return opening + change - due - firing
end

function steps.account(_, ARGV)
  index.begin()
  local t, without, away, rows = { sums = {}, there = { 0, 0, 0, 0, 0, 0 }, began = 0 }, 0, 0, {}
  for i = 1, #ARGV do
    index.enter(PREFIX .. ARGV[i] .. SUFFIX) -- never exists, see index.lua
    local here = balance.look()
    local difference = type(here) == 'number' and here > 0 and add(t, here)
    if type(here) ~= 'number' then
      away = away + 1
    elseif difference == nil then
      without = without + 1
    elseif difference and difference ~= 0 then
      rows[#rows + 1], rows[#rows + 2] = ARGV[i], difference
    end
  end
  local sums = {}
  for kind, sum in pairs(t.sums) do sums[#sums + 1], sums[#sums + 2] = kind, sum end
  return { sums, t.there, without, away, t.began, unpack(rows) }
end
