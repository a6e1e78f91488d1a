#!lua flags=allow-oom,allow-cross-slot-keys
--[[ observe takes in what keyspace events hint at, in their order.
KEYS    1  the partition's prefix; or none, for many partitions of one server
ARGV    1  when the first of these events happened at the earliest, in ms
        2  for how long of that time nothing could happen to their timers, in ms
        then for each partition its prefix, from when on the caller has heard every event of it,
        in ms, how many hints, and for each of these a kind and a timer's key:
        t  touched: the key may live; if it does not, another event says why
        a  audited: the same without an event
        g  gone: deleted, renamed or moved away
        v  evicted
        x  expired: it did run out, whatever the index says
        w  the same, but left alone if its timer is due and its key is certainly gone: the
           caller waits for the claim, and gives it as x before anything newer of its key
        In upper case they are for timers that the index knows already.
Returns for each partition, as far as payloads are not too large, {first due time or -1, owed,
adopted, rescheduled, cancelled, hints, denied, the key of one of those or an empty string, the
places of hints that were left alone}, or an empty array if it is not here as a whole, because its
slot is moving; the four after the first count timers. hints is
how many were taken in: fewer than given if their payloads are large. The caller
gives the rest again. denied is how many hints said nothing because timerd may not read
the key; that it ran out counts all the same.
If its reply is lost: the same hints may be given again. An expired event is then
explained by the tombstone that it left, or is too old to prove anything. One that
confirmed a contested timer makes it owed the second time. ]]

-- confirm makes a key's contested timer a confirmed one.
local function confirm(key)
  local about = redis.call('HGET', run.data, ':?:' .. key)
  redis.call('HSET', run.data, ':?:' .. key, (string.gsub(about, '^(%d+!?)%?', '%1', 1)))
end

function steps.observe(KEYS, ARGV)
  -- An expired event is explained by a tombstone that is not older than this, in
  -- ms. An event that is older itself than OLD proves nothing about a timer that the
  -- index does not know: others may have fired and forgotten it meanwhile. One that is
  -- set aside it fires, unless it is older than tombstones are kept, or there
  -- is one: then it may be about an earlier timer of the key.
  local FRESH, OLD = 4000, 3000

  local heard, held = tonumber(ARGV[1]), tonumber(ARGV[2])
  FRESH, OLD = FRESH + held, OLD + held
  index.begin()

  -- Of the partition that it is at: from when on the caller has heard every event, and the counts.
  local since, owed, adopted, rescheduled, cancelled, denied, denied_key

  local function count(outcome)
    if outcome == 1 then adopted = adopted + 1
    elseif outcome == 2 then rescheduled = rescheduled + 1
    elseif outcome == -1 then cancelled = cancelled + 1 end
  end

  -- touch makes the index agree with the key, as far as the key lives. changed says
  -- that an event tells of a change.
  local function touch(key, was, at, changed)
    if not at then denied, denied_key = denied + 1, key end
    if not at or at == -2 then return end
    if was and was <= run.now and contest.differs(at, was) then
      if contest.judge(key, was, since, 0, changed) then owed = owed + 1 end
      return count(contest.follow(key, at, MAX_PAYLOAD))
    end
    if at == -1 then
      if was then count(contest.follow(key, at, MAX_PAYLOAD)) end
    elseif was or at > run.now or not redis.call('ZSCORE', run.fired, key) then
      count(trigger.upsert(key, was, at, MAX_PAYLOAD))
    end
  end

  -- dismiss drops a key's contested timer in favour of the newer state of the key: had
  -- the key run out before, that event would have come first. This holds only if the
  -- caller has heard every event since the timer's due time; otherwise dismiss does
  -- nothing. The timer is kept until GRACE is over: the event that dismissed it may be
  -- older than the contest, and then an expired event follows that nothing else
  -- explains, or is missed.
  local function dismiss(key)
    local due, record, owed = contest.read(key)
    if due and since <= due then
      contest.take(key)
      redis.call('ZADD', run.due, run.now + contest.GRACE, ':d:' .. key)
      redis.call('HSET', run.data, ':d:' .. key, int(due) .. (owed and '!' or '') .. '/' .. record)
    end
  end

  local kinds = {
    a = function(key, was, at) touch(key, was, at) end,

    t = function(key, was, at)
      dismiss(key)
      touch(key, was, at, true)
    end,

    g = function(key, was, at)
      if at ~= -2 then return touch(key, was, at) end
      if was and was > run.now and not string.find(entry.flags(redis.call('HGET', run.data, key) or 'm:'), 'e', 1, true) then
        repetition.cancel(key)
        cancelled = cancelled + 1
      elseif not was and redis.call('HDEL', run.data, key) == 1 then -- due has lost it
        repetition.finish(key, repetition.serial_of(key))
      end
    end,

    v = function(key, was, at)
      if at ~= -2 then return touch(key, was, at) end
      if was then
        redis.call('HSET', run.data, key, entry.add_flag(redis.call('HGET', run.data, key) or 'm:', 'e'))
      end
    end,

    x = function(key, was, at, known)
      -- A contested timer is an older one than the pending one, and the event is about
      -- it. An unconfirmed one has to wait for the next event if the newer timer is not
      -- still to come: then this event is about the newer one.
      local due, record, _, unconfirmed = contest.read(key)
      if unconfirmed and not (was and was > run.now) then
        confirm(key)
        due = nil
      end
      if due then
        contest.take(key)
        firings.add(key, due, entry.add_flag(record, 'x'), 0)
        owed = owed + 1
      elseif was and was <= run.now then
        firings.owe(key, was, 'x')
        owed, was = owed + 1, nil
      else
        local told = math.min(firings.age(key) or FRESH + 1, firings.age(':c:' .. key) or FRESH + 1)
        if told <= FRESH then return touch(key, was, at) end
        -- Nothing explains the event. So a timer ran out that we do not know, or whose
        -- due time had changed without our knowledge.
        due, record = contest.take(key)
        if not due then due, record = contest.take(key, ':d:') end
        if not due then due, record = parked.take(key) end
        if due then
          firings.add(key, due, entry.add_flag(record, 'x'), 0)
        elseif was and at == -2 then
          firings.owe(key, run.now, 'x')
          was = nil
        elseif known or was and not at then
          return touch(key, was, at)
        else
          record = not was and redis.call('HGET', run.data, key) or 'm:' -- where due has lost it
          if not was then redis.call('HDEL', run.data, key) end
          firings.add(key, run.now, entry.add_flag(record, 'x'), 0)
        end
        owed = owed + 1
      end
      touch(key, was, at)
    end,
  }

  -- observe_one takes in one hint. sizes says that there may be large records.
  local function observe_one(kind, key, sizes)
    if sizes then
      for _, prefix in ipairs({ '', ':?:', ':d:' }) do
        run.spent = run.spent + redis.call('HSTRLEN', run.data, prefix .. key)
      end
    end
    local was, lower = index.pending(key), string.lower(kind)
    local known = kind ~= lower or kind == 'x' and run.now - heard > OLD
    if not known or was or redis.call('HEXISTS', run.data, ':?:' .. key) == 1
      or lower == 'x' and run.now - heard < clock.REMEMBER and not firings.age(key) and not firings.age(':c:' .. key) and parked.first(key) then
      kinds[lower](key, was, ttl.try(key), known)
    end
  end

  -- observe_group takes in hints of different keys, in their order, as far as their
  -- payloads are not too large. It returns how many. It batches the common cases: keys
  -- that are new or still pending, and expired events of timers that are due but not yet
  -- claimed, or that have just been fired.
  local function observe_group(given_kinds, names)
    local contested, sizes = {}, index.may_be_large()
    for i = 1, #names do
      contested[i] = ':?:' .. names[i]
      if sizes then contested[i] = redis.call('HEXISTS', run.data, contested[i]) == 1 end
    end
    if not sizes then contested = redis.call('HMGET', run.data, unpack(contested)) end
    local was, told = redis.call('ZMSCORE', run.due, unpack(names)), redis.call('ZMSCORE', run.fired, unpack(names))
    local gone = string.lower(given_kinds[1]) == 'x' and redis.pcall('EXISTS', unpack(names)) == 0
    local late, dues, times, records = {}, {}, {}, {}
    local taken = 0
    while taken < #names and run.spent <= BUDGET do
      taken = taken + 1
      local kind, key, due = given_kinds[taken], names[taken], tonumber(was[taken] or nil)
      local lower = string.lower(kind)
      if contested[taken] or lower == 'g' or lower == 'v' then
        observe_one(kind, key, sizes)
      elseif due or kind == lower then
        local at = gone and -2 or ttl.try(key)
        local owing = due and due <= run.now
        if lower == 'x' and at == -2 and owing then
          late[#late + 1], dues[#dues + 1] = key, int(due)
          if sizes then run.spent = run.spent + redis.call('HSTRLEN', run.data, key) end
        elseif lower == 'x' then
          if at ~= -2 or due or run.now - tonumber(told[taken] or 0) > FRESH then observe_one(kind, key, sizes) end
        elseif not at then
          touch(key, due, at)
        elseif at > run.now and not due then
          times[#times + 1], times[#times + 2] = at, key
          records[#records + 1], records[#records + 2] = key, trigger.record_of(key, MAX_PAYLOAD) or redis.call('HGET', run.data, key) or 'm:'
          index.note_size(records[#records])
          count(1)
        elseif at > run.now and not owing then
          count(trigger.upsert(key, due, at, MAX_PAYLOAD))
        elseif at ~= -2 then
          observe_one(kind, key, sizes)
        end
      end
    end
    if #times > 0 then
      redis.call('ZADD', run.due, unpack(times))
      redis.call('HSET', run.data, unpack(records))
    end
    if #late > 0 then
      local owe_records = redis.call('HMGET', run.data, unpack(late))
      for i = 1, #late do
        owe_records[i] = entry.add_flag(owe_records[i] or 'm:', 'x')
      end
      owing.list(run.prefix, firings.move(late, dues, owe_records, '0', firings.add))
      owed = owed + #late
    end
    return taken
  end

  -- leave_alone returns the places of the hints that may wait: their timers are due, and
  -- their keys are gone. The hints are n pairs behind a place of ARGV.
  local function leave_alone(behind, n)
    local names, places, left = {}, {}, {}
    for i = 1, n do
      if string.lower(ARGV[behind + 2 * i - 1]) == 'w' then names[#names + 1], places[#places + 1] = ARGV[behind + 2 * i], i end
    end
    if #names == 0 then return left end
    local was, gone = redis.call('ZMSCORE', run.due, unpack(names)), redis.pcall('EXISTS', unpack(names)) == 0
    for i = 1, #names do
      if tonumber(was[i] or run.now + 1) <= run.now and (gone or ttl.try(names[i]) == -2) then left[#left + 1] = places[i] end
    end
    return left
  end

  -- observe_in takes in the hints of a partition, n pairs behind a place of ARGV. It returns its
  -- part of the reply.
  local function observe_in(partition_prefix, behind, n)
    index.enter(partition_prefix)
    owed, adopted, rescheduled, cancelled, denied, denied_key = 0, 0, 0, 0, 0, ''
    local here = redis.pcall('EXISTS', run.due, run.prefix)
    if type(here) ~= 'number' then return KEYS[1] and here or {} end
    local left, leaving = leave_alone(behind, n), 1
    local given, taken = 0, 0
    while taken == given and given < n and run.spent <= BUDGET do
      local given_kinds, names, places, seen = {}, {}, {}, {}
      repeat
        given = given + 1
        local kind, key = ARGV[behind + 2 * given - 1], ARGV[behind + 2 * given]
        if left[leaving] == given then
          leaving = leaving + 1
        else
          given_kinds[#names + 1] = kind == 'w' and 'x' or kind == 'W' and 'X' or kind
          names[#names + 1], places[#places + 1] = key, given
          seen[key] = true
        end
      until #names == firings.GROUP or given == n or seen[ARGV[behind + 2 * given + 2]]
      local done = #names > 0 and observe_group(given_kinds, names) or 0
      taken = done == #names and given or places[done + 1] - 1
    end
    while left[#left] and left[#left] > taken do left[#left] = nil end
    return { index.head(), owed, adopted, rescheduled, cancelled, taken, denied, denied_key, left }
  end

  local reply, i = {}, 3
  while i < #ARGV and run.spent <= BUDGET do
    local n = tonumber(ARGV[i + 2])
    since = tonumber(ARGV[i + 1])
    local part = observe_in(ARGV[i], i + 2, n)
    if part.err then return part end
    reply[#reply + 1] = part
    i = i + 3 + 2 * n
  end
  return reply
end
