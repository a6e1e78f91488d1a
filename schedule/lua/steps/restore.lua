#!lua flags=allow-oom
--[[ restore brings one page of a partition's index into order again, after somebody has removed keys
or members of it. Each timer has a member in due and a record in data, each firing one in firing
and one in firingdata. Where one of the two is missing, the other one makes up for it. A timer
without a member is due when its key runs out; at once if its key is gone, because it may have run out
meanwhile, unless its name or its record says when. A contested one is contested for GRACE again. A
firing without a member counts as claimed by somebody who may have published it. What lost its record
fires without a payload, unless an audit finds that in its key.
KEYS    1  the partition's prefix
ARGV    1  which of the four the page is of: data, due, firingdata or firing
        2  cursor; 0 begins
        3  how many entries to look at, roughly
        4  lease in ms
Returns {next cursor, 0 at the end, how many were put back by their records, how many got a
record without a payload, how many were dropped, fields that are of no timer and mean nothing to
this version, when the first timer is due, or -1}.
If its reply is lost: the same page again changes nothing more. ]]

-- How many entries one command is about, and how many firings are looked at for one of a key.
local MANY, MOST_FIRINGS = 100, 1000

-- is_timer reports whether a member without a due time can be that of a timer.
local function is_timer(member)
  return string.byte(member) ~= 58 or string.find(member, '^:[?d]:.') ~= nil or string.find(member, '^:s?%d+%.%d*:.') ~= nil
end

-- due_of returns when a timer without a member is due, or nil for one whose key lives on without a TTL.
local function due_of(member, record)
  if string.find(member, '^:[?d]:') then
    redis.call('HSET', run.data, ':?:', int(run.now + clock.REMEMBER))
    return run.now + contest.GRACE
  elseif string.byte(member) == 58 then
    return tonumber(string.match(member, '^:(%d+)') or run.now)
  end
  local at = ttl.try(member)
  if at == -1 then return nil end
  return at and at >= 0 and at or math.max(run.now, tonumber(string.match(record, '^[^:]*;R=%d+,(%d+)') or 0))
end

function steps.restore(KEYS, ARGV)
  index.open(KEYS[1])
  local lease_end = int(run.now + tonumber(ARGV[4]))
  local restored, bare, dropped, unknown = 0, 0, 0, 0
  local _, is_held = holds.read(redis.call('HGET', run.data, ':h:') or nil)

  local is_meta = {}
  for i = 1, #meta.FIELDS do is_meta[meta.FIELDS[i]] = true end

  -- missing_in calls restore_one with each name of a page of records, and its record, that a sorted set has not.
  local function missing_in(set, page, restore_one)
    for first = 1, #page, 2 * MANY do
      local names = {}
      for i = first, math.min(first + 2 * MANY, #page + 1) - 1, 2 do names[#names + 1] = page[i] end
      local scores = redis.call('ZMSCORE', set, unpack(names))
      for i = 1, #names do
        if not scores[i] and not is_meta[names[i]] then restore_one(names[i], page[first + 2 * i - 1]) end
      end
    end
  end

  -- fires_already reports whether a firing that is not settled has a key and its record: a claim was refused in the
  -- middle then, and has left the record. Beyond BUDGET bytes of records of this size it compares no more: rather the
  -- timer fires twice.
  local refs_of
  local compared = 0
  local function fires_already(key, record)
    if not refs_of then
      refs_of = {}
      for _, ref in ipairs(redis.call('ZRANGE', run.firing, 0, MOST_FIRINGS - 1)) do
        local of = string.match(ref, '^%d+:%d*:(.*)$')
        if of then refs_of[of] = { ref, refs_of[of] } end
      end
    end
    local each = refs_of[key]
    while each do
      if redis.call('HSTRLEN', run.firingdata, each[1]) == #record then
        if compared > BUDGET then return false end
        compared = compared + #record
        if redis.call('HGET', run.firingdata, each[1]) == record then return true end
      end
      each = each[2]
    end
    return false
  end

  -- restore_timer gives a timer a member in due again, unless it fires already or its key has lost its TTL.
  local function restore_timer(member, record)
    if not is_timer(member) then
      unknown = unknown + 1
      return
    end
    local due = due_of(member, record)
    if not due then
      repetition.cancel(member)
      dropped = dropped + 1
    elseif due == run.now and redis.call('ZSCORE', run.fired, member) and fires_already(member, record) then
      redis.call('HDEL', run.data, member)
      dropped = dropped + 1
    else
      redis.call('ZADD', run.due, int(due), member)
      restored = restored + 1
    end
  end

  -- restore_firing gives a firing a member in firing again. One whose timer is still due was never made: a claim was
  -- refused in the middle.
  local function restore_firing(ref)
    local due, attempt, key = string.match(ref, '^(%d+):(%d*):(.*)$')
    if not key or index.pending(key) == tonumber(due) then
      dropped = dropped + redis.call('HDEL', run.firingdata, ref)
      return
    end
    local hold = attempt ~= '0' and is_held and is_held(key, tonumber(due))
    redis.call('ZADD', run.firing, hold and int(HELD + due) or lease_end, ref)
    if hold then owing.list(run.prefix, { ref }) end
    restored = restored + 1
  end

  -- give_records gives the members of a page that have no record one without a payload. A contested timer goes: its
  -- record said all of it.
  local function give_records(hash, page)
    for i = 1, #page, 2 do
      if redis.call('HEXISTS', hash, page[i]) == 0 then
        if string.find(page[i], '^:[?d]:') then
          index.forget(page[i])
          dropped = dropped + 1
        else
          redis.call('HSET', hash, page[i], 'm:')
          bare = bare + 1
        end
      end
    end
  end

  -- scan_records calls restore_page with a page of records, in parts of few where some are large, and returns the next
  -- cursor.
  local function scan_records(hash, restore_page)
    local cursor, count, looked = ARGV[2], index.may_be_large() and 1 or ARGV[3], 0
    repeat
      local page = redis.call('HSCAN', hash, cursor, 'COUNT', count)
      restore_page(page[2])
      cursor, looked = page[1], looked + math.max(#page[2] / 2, tonumber(count))
      for i = 2, #page[2], 2 do run.spent = run.spent + #page[2][i] end
    until cursor == '0' or looked >= tonumber(ARGV[3]) or run.spent > BUDGET
    return cursor
  end

  -- scan_members calls give_records with a page of a sorted set, and returns the next cursor.
  local function scan_members(set, hash)
    local page = redis.call('ZSCAN', set, ARGV[2], 'COUNT', ARGV[3])
    give_records(hash, page[2])
    return page[1]
  end

  local cursor
  if ARGV[1] == 'data' then
    cursor = scan_records(run.data, function(page) missing_in(run.due, page, restore_timer) end)
  elseif ARGV[1] == 'due' then
    cursor = scan_members(run.due, run.data)
  elseif ARGV[1] == 'firingdata' then
    cursor = scan_records(run.firingdata, function(page) missing_in(run.firing, page, restore_firing) end)
  else
    cursor = scan_members(run.firing, run.firingdata)
  end
  if restored > 0 then wake.at(index.head()) end
  return { cursor, restored, bare, dropped, unknown, index.head() }
end
