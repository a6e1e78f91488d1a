#!lua flags=allow-oom,allow-cross-slot-keys
--[[ claim claims firings for a lease, in this order: what is owed, what was claimed by
somebody whose lease ran out, and what is due. What is held it moves to where no claim
looks, but for what may have been published. It also removes old tombstones.
KEYS    1  the partition's prefix
ARGV    1  lease in ms
        2  how many firings at most
        3  how many bytes of payload at most; one firing is claimed in any case
        4  from when on the caller has heard every event, in ms
        5  the generation of the list of holds that the caller knows, 0 if nothing is held
        6  up to where the caller's last claim looked for what is free, as that has
           returned it, or an empty string
        7  the channel on which the timerds are told what was claimed
Returns {seconds, microseconds, next, trimmed, rescheduled, cancelled, set aside, the
key of one of those or an empty string, argument 6 for the next claim, then for each
firing its ref, its record and how it was: "o" owed, "f" the same, but freed by a resume or
after a pause, "p" given back though perhaps published, "r" reclaimed, "d" due}. The first
two are the time of the claim. next is when there is something to claim again, in ms: a due
time, the end of a lease, 0 for at once, or -1. trimmed is 1 if more tombstones are to be
removed. An error that begins with BEHIND says that
the partition's list of holds is older than the caller's, and that nothing was done.
If its reply is lost: the firings stay claimed until the lease ends. Then the next claim
has them, as reclaimed. ]]

-- How many tombstones one call removes at most: several times what one claim adds, so that
-- they never pile up though claim_short removes none.
local TRIM = 640

-- How many due timers one call moves because they are held, and of how many bytes, about;
-- and at how many it looks for free ones where more are held. To look takes a tenth of the time.
local MOST_HELD, MOST_HELD_BYTES, MOST_LOOKED = 256, 200000, 1000

-- in_full writes a score in full. It is so already, except for some round ones.
local function in_full(score) return string.find(score, '^%d+$') and score or int(tonumber(score)) end

-- special returns the name and the key of a member of due that is no key, and otherwise nil.
local function special(member)
  if string.byte(member) == 58 then return string.match(member, '^:([^:]*):(.*)$') end
end

-- is_before tells whether a member is before another of the same score. Lua compares by the
-- server's locale.
local function is_before(one, other)
  for i = 1, math.min(#one, #other) do
    local x, y = string.byte(one, i), string.byte(other, i)
    if x ~= y then return x < y end
  end
  return #one < #other
end

function steps.claim(KEYS, ARGV)
  index.open(KEYS[1])
  claims.begin()
  local lease_end, limit, room = int(run.now + tonumber(ARGV[1])), tonumber(ARGV[2]), tonumber(ARGV[3])
  local since = tonumber(ARGV[4])
  local out = { run.time[1], run.time[2], -1, 0, 0, 0, 0, '', '' }
  local claimed, told, free_taken = 0, {}, {}
  run.beside_others = redis.call('EXISTS', run.prefix .. 'owed', run.prefix .. 'beside') > 0

  local said = redis.call('HMGET', run.data, ':?:', ':h:')
  local contested_until = said[1]
  local generation, is_held = holds.read(said[2])
  if generation < tonumber(ARGV[5]) then return redis.error_reply('BEHIND timerd: the list of holds') end
  local moved, held_room = 0, MOST_HELD_BYTES

  local function take(ref, record, how)
    local n = #out
    out[n + 1], out[n + 2], out[n + 3] = ref, record, how
    claimed, room = claimed + 1, room - #record
  end

  -- claim_one claims a firing that make makes of a timer. One that is held is owed, and held
  -- by the next claim.
  local function claim_one(make, key, due, record)
    if is_held and is_held(key, due) then return make(key, due, record, '0') end
    take(make(key, due, record, lease_end), record, 'd')
  end

  -- hold_owed holds a firing that is owed. That it was to become a dead letter is forgotten.
  local function hold_owed(ref, due, record)
    redis.call('ZADD', run.firing, int(HELD + due), ref)
    if string.find(entry.flags(record), 'h', 1, true) then
      redis.call('HSET', run.firingdata, ref, (string.gsub(record, 'h', '', 1)))
    end
    room = room - #record
  end

  -- What is free has at most half of a claim while something is due: it may be what was
  -- given back because it cannot be published.
  local first_due = index.head()
  local most = first_due ~= -1 and first_due <= run.now and math.ceil(limit / 2) or limit
  local free = redis.call('ZRANGEBYSCORE', run.firing, '-inf', run.now_text, 'WITHSCORES', 'LIMIT', 0, most)
  for first = 1, #free, 2 * firings.GROUP do
    if room <= 0 then break end
    local refs, leases, tombstones, taken = {}, {}, {}, {}
    for i = first, math.min(first + 2 * firings.GROUP, #free + 1) - 1, 2 do refs[#refs + 1] = free[i] end
    local fits = index.fitting(run.firingdata, refs, room)
    local records = redis.call('HMGET', run.firingdata, unpack(refs, 1, fits))
    for i = 1, fits do
      local ref, record = refs[i], records[i] or 'm:'
      local due, attempt, key = string.match(ref, '^(%d+):(%d*):(.*)$')
      local to_plan = attempt == '0'
      local score = tonumber(free[first + 2 * i - 1])
      local how = score == 0 and 'o' or scores.may_be_published(score) and 'p' or scores.is_unclaimed(score) and 'f' or 'r'
      -- What a resume has released stays so, as does what had a pause since; an infinite due
      -- time lies within no resume.
      if is_held and (how == 'o' or how == 'f') and key and not to_plan and is_held(key, how == 'f' and math.huge or tonumber(due)) then
        hold_owed(ref, due, record)
      else
        taken[#taken + 1] = ref
        free_taken[#free_taken + 1] = ref
        leases[#leases + 1], leases[#leases + 2] = lease_end, ref
        if not to_plan then firings.add_tombstones(tombstones, key or ref, due or '0', entry.attempt(record), record) end
        take(ref, record, how)
      end
    end
    if #taken > 0 then
      redis.call('ZADD', run.firing, unpack(leases))
      if #tombstones > 0 then redis.call('ZADD', run.fired, unpack(tombstones)) end
    end
    if fits < #refs then room = 0 end
  end

  -- select_run_out returns those of due timers whose keys have run out. It contests the
  -- others and takes in their keys as they are now, as many as their payloads allow. What is
  -- owed thereby is claimed, or nobody's if hold says so.
  local function select_run_out(members, dues, hold)
    if redis.pcall('EXISTS', unpack(members)) == 0 then return members, dues end
    local names, times = {}, {}
    for i = 1, #members do
      if run.spent > BUDGET then break end
      local member, due = members[i], tonumber(dues[i])
      local at = ttl.try(member)
      if not at and parked.park(member, due) then
        out[7], out[8] = out[7] + 1, member
      elseif at and contest.differs(at, due) then
        local ref = contest.judge(member, due, since, hold and '0' or lease_end)
        contested_until = run.now + clock.REMEMBER
        if ref and not hold then take(ref, redis.call('HGET', run.firingdata, ref), 'd') end
        local outcome = contest.follow(member, at, MAX_PAYLOAD)
        if outcome == -1 then out[6] = out[6] + 1 elseif outcome == 2 then out[5] = out[5] + 1 end
      else
        -- In the ms of its due time Redis still has the key. If it stayed, its expired
        -- event could come long after the tombstone.
        if at ~= -2 then redis.pcall('DEL', member) end
        names[#names + 1], times[#times + 1] = member, dues[i]
      end
    end
    return names, times
  end

  -- move claims due timers as far as there is room, or moves those that are to be held.
  local function move(members, dues, hold)
    local left = hold and held_room or room
    if #members > 0 and left > 0 then members, dues = select_run_out(members, dues, hold) end
    if #members == 0 or left <= 0 then return end
    local fits = index.fitting(run.data, members, left)
    local records = redis.call('HMGET', run.data, unpack(members, 1, fits))
    for i = 1, fits do records[i] = records[i] or 'm:' end
    local refs = firings.move(members, dues, records, not hold and lease_end or nil, firings.add)
    for i = 1, fits do
      if hold then held_room = held_room - #records[i] else take(refs[i], records[i], 'd') end
      told[#told + 1] = members[i]
    end
    if hold then
      owing.list(run.prefix, refs)
      moved = moved + fits
      if fits < #members then held_room = 0 end
    elseif fits < #members then
      room = 0
    end
  end

  -- claim_parked looks again at a timer that was set aside. If its key can be read now and
  -- lives on, there are two cases: its TTL was changed before it ran out, or it was set
  -- again since. In the ms in which a key runs out it may be that of a newer timer that
  -- has been claimed, and says nothing.
  local function claim_parked(member, key, due)
    local at = ttl.try(key)
    if not at or at >= 0 and at <= run.now then return redis.call('ZADD', run.due, parked.next_look(due), member) end
    local record = redis.call('HGET', run.data, member) or 'm:'
    beside.forget(member, key)
    if at == -2 or parked.set_again(key, due, record) then
      claim_one(firings.add, key, due, record)
      if at ~= -2 then contest.follow(key, at, MAX_PAYLOAD) end
    elseif at == -1 then
      repetition.cancel(key)
      out[6] = out[6] + 1
    else
      out[5] = out[5] + 1
      local current = index.pending(key) and redis.call('HGET', run.data, key)
      local serial = current and redis.call('ZSCORE', run.prefix .. 'repeat', key)
      if not current then
        redis.call('HSET', run.data, key, record)
      elseif serial and entry.is_occurrence_of(record, serial) then -- the key was taken in as a single timer
        redis.call('HSET', run.data, key, entry.with_value(record, current))
      end
      redis.call('ZADD', run.due, at, key)
    end
  end

  -- claim_special claims a member of due that is no key.
  local function claim_special(member, due, name, key)
    if name == '?' or name == 'd' then
      run.spent = run.spent + redis.call('HSTRLEN', run.data, member)
      -- No expired event has come. So nothing is owed, unless the caller may have missed
      -- the event: then contest.check_ran_out's answer counts.
      local was, record, owed = contest.read(key, ':' .. name .. ':')
      index.forget(member)
      if owed and was < since then claim_one(firings.add, key, was, record) end
      return
    end
    local aside, was = string.match(name, '^(s?)(%d+)')
    was = tonumber(was or due)
    if aside == 's' then
      run.spent = run.spent + redis.call('HSTRLEN', run.data, member)
      claim_parked(member, key, was)
    else
      local record = redis.call('HGET', run.data, member) or 'm:'
      beside.forget(member, key)
      local at = entry.attempt(record) == '1' and firings.free_due(key, was) or was
      if at > run.now and at ~= was then return beside.add(key, at, '1', record, '') end
      claim_one(firings.add_retry, key, at, record)
    end
  end

  -- claim_due claims due timers from the first one on, and moves those that are held.
  local function claim_due()
    local members = redis.call('ZRANGEBYSCORE', run.due, '-inf', run.now_text, 'WITHSCORES', 'LIMIT', 0, limit - claimed)
    local groups = { [false] = { {}, {} }, [true] = { {}, {} } } -- by whether they are held
    for i = 1, #members, 2 do
      if room <= 0 then break end
      local member, due = members[i], members[i + 1]
      local name, key = special(member)
      if name then
        if run.spent > BUDGET and not string.find(name, '^%d') then break end
        claim_special(member, due, name, key)
      else
        local hold = is_held ~= nil and is_held(member, tonumber(due))
        local names, dues = unpack(groups[hold])
        names[#names + 1] = member
        dues[#names] = in_full(due)
        if #names == firings.GROUP then
          move(names, dues, hold)
          groups[hold] = { {}, {} }
        end
      end
    end
    move(groups[false][1], groups[false][2])
    move(groups[true][1], groups[true][2], true)
  end

  -- behind returns the rank of the first due timer behind one at which an earlier claim has
  -- looked; or of the first one of all if that timer is gone, or if the list of holds is another:
  -- what was held may be free.
  local function behind(looked)
    local by, member = string.match(looked, '^(%d+):(.*)$')
    local score = tonumber(by) == generation and redis.call('ZSCORE', run.due, member)
    if not score then return 0 end
    local low, high = redis.call('ZCOUNT', run.due, '-inf', '(' .. score), redis.call('ZCOUNT', run.due, '-inf', score) - 1
    while low < high do
      local middle = math.floor((low + high) / 2)
      if is_before(redis.call('ZRANGE', run.due, middle, middle)[1], member) then low = middle + 1 else high = middle end
    end
    return low + 1
  end

  -- claim_free claims those due timers that are free, from behind one at which an earlier
  -- claim has looked, or from the first on. It returns the last one at which it has looked,
  -- which is held, after the generation of the list of holds; and whether there are more.
  local function claim_free(looked)
    local first = behind(looked)
    local members = redis.call('ZRANGE', run.due, first, first + MOST_LOOKED - 1, 'WITHSCORES')
    local names, dues, last, more = {}, {}, looked, #members == 2 * MOST_LOOKED
    for i = 1, #members, 2 do
      local member, due = members[i], members[i + 1]
      if tonumber(due) > run.now then
        more = false
        break
      elseif claimed + #names >= limit or room <= 0 or run.spent > BUDGET then
        more = true
        break
      end
      local name, key = special(member)
      if name then
        claim_special(member, due, name, key)
      elseif is_held and is_held(member, tonumber(due)) then
        last = int(generation) .. ':' .. member
      else
        names[#names + 1], dues[#names + 1] = member, in_full(due)
        if #names == firings.GROUP then
          move(names, dues)
          names, dues = {}, {}
        end
      end
    end
    move(names, dues)
    -- What there was no room for is looked at again.
    if room <= 0 or run.spent > BUDGET then return looked, true end
    return last, more
  end

  -- Where many are held, those of others do not wait for all of them to be moved: first all
  -- are looked at, then they are moved, and meanwhile what becomes due is looked at.
  local looked, more = ARGV[6], false
  if looked ~= '' then looked, more = claim_free(looked) end
  local before = -1
  while not more and moved > before and moved < MOST_HELD and held_room > 0 and claimed < limit and room > 0 do
    before = moved
    claim_due()
  end
  if moved == before then
    looked = ''
  elseif moved > 0 and looked == '' then
    looked = claim_free('')
  end
  out[9] = looked
  -- Until here they were listed for those of their keys that are claimed with them.
  for first = 1, #free_taken, firings.GROUP do
    owing.unlist(run.prefix, { unpack(free_taken, first, math.min(first + firings.GROUP - 1, #free_taken)) })
  end

  out[3] = index.head()
  local lease = tonumber(redis.call('ZRANGE', run.firing, 0, 0, 'WITHSCORES')[2])
  -- Records without a member in due or firing are put back by a sweep, which has to know whether they are large.
  local fields = out[3] == -1 and not lease and redis.call('HLEN', run.data) or 0
  if fields > 0 and meta.without(run.data, fields) == 0 and redis.call('EXISTS', run.firingdata) == 0 then
    redis.call('HDEL', run.data, ':l:', ':?:')
  end
  if lease and (out[3] == -1 or lease < out[3]) then out[3] = lease end
  claims.note(told, contested_until, out[3])
  claims.publish(ARGV[7])

  if lease ~= 0 then
    local old = redis.call('ZCOUNT', run.fired, '-inf', int(run.now - clock.REMEMBER - tonumber(ARGV[1])))
    if old > 0 then redis.call('ZREMRANGEBYRANK', run.fired, 0, math.min(old, TRIM) - 1) end
    if old > TRIM then out[4] = 1 end
  end
  return out
end
