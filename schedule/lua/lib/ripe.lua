-- Pending timers that are due.

-- The number of them that a call searches for free ones if more are held: to look takes a tenth of the time of a move.
local MOST_LOOKED = 1000

-- in_full writes a score in full. It is so already, except for some round ones.
function ripe.in_full(score) return string.find(score, '^%d+$') and score or int(tonumber(score)) end

-- select_run_out returns the due timers whose keys have run out. It contests the others and takes in their present
-- keys, as many as their payloads allow. A timer owed thereby is claimed, or only owed if hold says so.
local function select_run_out(t, members, dues, hold)
  if redis.pcall('EXISTS', unpack(members)) == 0 then return members, dues end
  local names, times = {}, {}
  for i = 1, #members do
    if run.spent > BUDGET then break end
    local member, due = members[i], tonumber(dues[i])
    local at = ttl.try(member)
    if not at and parked.park(member, due) then
      t.aside, t.aside_key = t.aside + 1, member
    elseif at and contest.differs(at, due) then
      local ref = contest.judge(member, due, t.since, hold and '0' or t.lease_end)
      t.contested_until = clock.real() + clock.REMEMBER
      if ref and not hold then taken.add(t, 'due', ref, redis.call('HGET', run.firingdata, ref)) end
      taken.follow(t, member, at)
    else
      -- In the ms of its due time Redis still has the key. If it stayed, its expired event could come long after the
      -- tombstone.
      if at ~= -2 then redis.pcall('DEL', member) end
      names[#names + 1], times[#times + 1] = member, dues[i]
    end
  end
  return names, times
end

-- move claims due timers as far as there is room, or holds them.
local function move(t, members, dues, hold)
  local left = hold and t.held_room or t.room
  if #members > 0 and left > 0 then members, dues = select_run_out(t, members, dues, hold) end
  if #members == 0 or left <= 0 then return end
  local fits = sizes.fitting(run.data, members, left)
  local records = redis.call('HMGET', run.data, unpack(members, 1, fits))
  for i = 1, fits do records[i] = records[i] or 'm:' end
  local moved = batch.move(members, dues, records, not hold and t.lease_end or nil, firings.add)
  for i = 1, fits do
    if hold then t.held_room = t.held_room - #records[i] else taken.add(t, 'due', moved[2 * i - 1], records[i]) end
    t.keys[#t.keys + 1] = members[i]
  end
  if hold then
    owing.list(moved, true)
    t.moved = t.moved + fits
    if fits < #members then t.held_room = 0 end
  elseif fits < #members then
    t.room = 0
  end
end

-- new_group returns an empty group of timers that move moves.
local function new_group(hold) return { members = {}, dues = {}, hold = hold } end

-- add_to adds a timer to a group. It returns the group, or once that is moved an empty one.
local function add_to(t, group, member, due)
  local n = #group.members + 1
  group.members[n], group.dues[n] = member, ripe.in_full(due)
  if n < firings.GROUP then return group end
  move(t, group.members, group.dues, group.hold)
  return new_group(group.hold)
end

-- claim_first claims due timers from the first one on, and moves held ones. It returns whether it has come to all
-- due timers.
local function claim_first(t)
  local most = t.limit - t.count
  local listed = redis.call('ZRANGEBYSCORE', run.due, '-inf', clock.due_text(), 'WITHSCORES', 'LIMIT', 0, most)
  t.looked = t.looked + #listed / 2
  local groups = { [false] = new_group(false), [true] = new_group(true) } -- by whether they are held
  for i = 1, #listed, 2 do
    if t.room <= 0 then break end
    local member, due = listed[i], listed[i + 1]
    local name, key = special.parse(member)
    if name then
      if run.spent > BUDGET and not string.find(name, '^%d') then break end
      special.claim(t, member, due, name, key)
    else
      local hold = t.is_held ~= nil and t.is_held(member, tonumber(due))
      groups[hold] = add_to(t, groups[hold], member, due)
    end
  end
  for _, hold in ipairs({ false, true }) do move(t, groups[hold].members, groups[hold].dues, hold) end
  return #listed < 2 * most and t.room > 0 and t.held_room > 0 and run.spent <= BUDGET
end

-- is_before reports whether a member is before another of the same score. Lua compares by the server's locale.
local function is_before(one, other)
  for i = 1, math.min(#one, #other) do
    local x, y = string.byte(one, i), string.byte(other, i)
    if x ~= y then return x < y end
  end
  return #one < #other
end

-- behind returns the rank of the first due timer behind one at which an earlier claim has looked; or of the first one
-- of all if that timer is gone, or if the list of holds is another: held timers may be free.
local function behind(t, looked)
  local by, member = string.match(looked, '^(%d+):(.*)$')
  local score = tonumber(by) == t.generation and redis.call('ZSCORE', run.due, member)
  if not score then return 0 end
  local low, high = redis.call('ZCOUNT', run.due, '-inf', '(' .. score),
    redis.call('ZCOUNT', run.due, '-inf', score) - 1
  while low < high do
    local middle = math.floor((low + high) / 2)
    if is_before(redis.call('ZRANGE', run.due, middle, middle)[1], member) then low = middle + 1 else high = middle end
  end
  return low + 1
end

-- claim_free claims those due timers that are free, from behind one at which an earlier claim has looked, or from the
-- first on. It returns the last one at which it has looked, which is held, after the generation of the list of holds;
-- and whether there are more.
local function claim_free(t, looked)
  local first, last, group = behind(t, looked), looked, new_group(false)
  local listed = redis.call('ZRANGE', run.due, first, first + MOST_LOOKED - 1, 'WITHSCORES')
  local more, now = #listed == 2 * MOST_LOOKED, clock.due()
  t.looked = t.looked + #listed / 2
  for i = 1, #listed, 2 do
    local member, due = listed[i], listed[i + 1]
    if tonumber(due) > now then
      more = false
      break
    elseif t.count + #group.members >= t.limit or t.room <= 0 or run.spent > BUDGET then
      more = true
      break
    end
    local name, key = special.parse(member)
    if name then
      special.claim(t, member, due, name, key)
    elseif t.is_held and t.is_held(member, tonumber(due)) then
      last = int(t.generation) .. ':' .. member
    else
      group = add_to(t, group, member, due)
    end
  end
  move(t, group.members, group.dues)
  -- Timers without room are looked at again.
  if t.room <= 0 or run.spent > BUDGET then return looked, true end
  return last, more
end

-- claim claims due timers, and returns up to where it has looked for free ones, or an empty text. Where many are held,
-- free timers do not wait until all of these are moved: first it looks at all, then it moves the held ones, and looks
-- at timers that become due meanwhile.
function ripe.claim(t, looked)
  local more, before = false, -1
  if looked ~= '' then looked, more = claim_free(t, looked) end
  while not more and t.moved > before and t.moved < taken.MOST_HELD and t.held_room > 0 and not taken.is_full(t) do
    before = t.moved
    if claim_first(t) then return '' end
  end
  if t.moved == before then return '' end
  return t.moved > 0 and looked == '' and (claim_free(t, '')) or looked
end
