#!lua flags=allow-oom
--[[ restore brings one page of a partition's index into order again, after somebody has removed keys or members of it.
Each timer has a member in due and a record in data, each firing one in firing and one in firingdata. Where one of the
two is missing, the other one makes up for it. A timer without a member is due when its key runs out; at once if its key
is gone, because it may have run out meanwhile, unless its name or its record says when. A contested one is contested
for GRACE again. A firing without a member counts as claimed by somebody who may have published it. What lost its record
fires without a payload, unless an audit finds that in its key.
KEYS    1  the partition's prefix
ARGV    1  the set or hash of the page: data, due, firingdata or firing
        2  cursor; 0 begins
        3  the number of entries to look at, roughly
        4  lease in ms
Returns {next cursor, 0 at the end; the numbers of entries put back by their records, given a record without a payload,
and dropped, and of fields that are of no timer and mean nothing to this version; the first due time, or -1}.
If its reply is lost: the same page again changes nothing more. ]]

-- Limits of the entries of one command, and of the firings looked at to find one of a key.
local MANY, MOST_FIRINGS = 100, 1000

-- is_timer reports whether a member without a due time can be that of a timer.
local function is_timer(member)
  return string.byte(member) ~= 58 or string.find(member, '^:[?d]:.') ~= nil
    or string.find(member, '^:s?%d+%.%d*:.') ~= nil
end

-- due_of returns the due time of a timer without a member, or nil if its key lives on without a TTL.
local function due_of(member, record)
  if string.find(member, '^:[?d]:') then
    meta.note_contest()
    return clock.due() + contest.GRACE
  elseif string.byte(member) == 58 then
    return tonumber(string.match(member, '^:(%d+)') or clock.due())
  end
  local at = ttl.try(member)
  if at == -1 then return nil end
  return at and at >= 0 and at or math.max(clock.due(), tonumber(string.match(record, '^[^:]*;R=%d+,(%d+)') or 0))
end

-- missing_in calls restore_one with each name of a page of records that a sorted set lacks, and its record.
local function missing_in(t, set, page, restore_one)
  for first = 1, #page, 2 * MANY do
    local names = {}
    for i = first, math.min(first + 2 * MANY, #page + 1) - 1, 2 do names[#names + 1] = page[i] end
    local scores = redis.call('ZMSCORE', set, unpack(names))
    for i = 1, #names do
      if not scores[i] and not meta.is_field(names[i]) then restore_one(t, names[i], page[first + 2 * i - 1]) end
    end
  end
end

-- read_refs returns the refs of firings by their keys: each a list of a ref and the list of the others.
local function read_refs()
  local refs_of = {}
  for _, ref in ipairs(redis.call('ZRANGE', run.firing, 0, MOST_FIRINGS - 1)) do
    local of = string.match(ref, '^%d+:%d*:(.*)$')
    if of then refs_of[of] = { ref, refs_of[of] } end
  end
  return refs_of
end

-- fires_already reports whether an unsettled firing has a key and its record: a claim that was refused in the middle
-- has left the record. Beyond BUDGET bytes of records of this size it stops comparing: the timer may then fire twice.
local function fires_already(t, key, record)
  t.refs_of = t.refs_of or read_refs()
  local each = t.refs_of[key]
  while each do
    if redis.call('HSTRLEN', run.firingdata, each[1]) == #record then
      if t.compared > BUDGET then return false end
      t.compared = t.compared + #record
      if redis.call('HGET', run.firingdata, each[1]) == record then return true end
    end
    each = each[2]
  end
  return false
end

-- restore_timer gives a timer a member in due again, unless it fires already or its key has lost its TTL.
local function restore_timer(t, member, record)
  if not is_timer(member) then
    t.unknown = t.unknown + 1
    return
  end
  local due = due_of(member, record)
  if not due then
    repetition.cancel(member)
    t.dropped = t.dropped + 1
  elseif due == clock.due() and redis.call('ZSCORE', run.fired, member) and fires_already(t, member, record) then
    index.drop(member)
    t.dropped = t.dropped + 1
  else
    index.redate(member, int(due))
    t.restored = t.restored + 1
  end
end

-- restore_firing gives a firing a member in firing again. One whose timer is still due was never made: a claim was
-- refused in the middle.
local function restore_firing(t, ref)
  local due, attempt, key = string.match(ref, '^(%d+):(%d*):(.*)$')
  if not key or index.pending(key) == tonumber(due) then
    index.end_firings({ ref })
    t.dropped = t.dropped + 1
    return
  end
  local hold = attempt ~= '0' and t.is_held and t.is_held(key, tonumber(due))
  index.rescore({ hold and int(HELD + due) or t.lease_end, ref })
  if hold then owing.list({ ref }) end
  t.restored = t.restored + 1
end

-- give_records gives the members of a page that have no record one without a payload. A contested timer goes: its
-- record said all of it.
local function give_records(t, hash, page)
  for i = 1, #page, 2 do
    if redis.call('HEXISTS', hash, page[i]) == 0 then
      if string.find(page[i], '^:[?d]:') then
        index.forget(page[i], account.REPLACED)
        t.dropped = t.dropped + 1
      else
        if hash == run.data then index.rewrite(page[i], 'm:') else index.rewrite_firings({ page[i], 'm:' }) end
        t.bare = t.bare + 1
      end
    end
  end
end

-- scan_records restores a page of records without members in a sorted set, in parts of few where some are large. It
-- returns the next cursor.
local function scan_records(t, hash, set, restore_one)
  local cursor, count, looked = t.cursor, sizes.may_be_large() and 1 or t.count, 0
  repeat
    local page = redis.call('HSCAN', hash, cursor, 'COUNT', count)
    missing_in(t, set, page[2], restore_one)
    cursor, looked = page[1], looked + math.max(#page[2] / 2, tonumber(count))
    for i = 2, #page[2], 2 do run.spent = run.spent + #page[2][i] end
  until cursor == '0' or looked >= tonumber(t.count) or run.spent > BUDGET
  return cursor
end

-- scan_members calls give_records with a page of a sorted set, and returns the next cursor.
local function scan_members(t, set, hash)
  local page = redis.call('ZSCAN', set, t.cursor, 'COUNT', t.count)
  give_records(t, hash, page[2])
  return page[1]
end

function steps.restore(KEYS, ARGV)
  index.open(KEYS[1])
  local t = {
    cursor = ARGV[2], count = ARGV[3], lease_end = int(clock.due() + tonumber(ARGV[4])), is_held = holds.of(run.data),
    restored = 0, bare = 0, dropped = 0, unknown = 0, compared = 0,
  }
  local cursor
  if ARGV[1] == 'data' then
    cursor = scan_records(t, run.data, run.due, restore_timer)
  elseif ARGV[1] == 'due' then
    cursor = scan_members(t, run.due, run.data)
  elseif ARGV[1] == 'firingdata' then
    cursor = scan_records(t, run.firingdata, run.firing, restore_firing)
  else
    cursor = scan_members(t, run.firing, run.firingdata)
  end
  if t.restored > 0 then wake.at(index.head()) end
  return { cursor, t.restored, t.bare, t.dropped, t.unknown, index.head() }
end
