#!lua flags=allow-oom
-- include: scores clock index hold common owed announce
--[[ restore brings one page of a partition's index into order again, after somebody has removed keys
or members of it. Each timer has a member in due and a record in data, each firing one in firing
and one in firingdata. Where one of the two is missing, the other one makes up for it. A timer
without a member is due when its key runs out; at once if its key is gone, because it may have run out
meanwhile, unless its name or its record says when. A firing without a member counts as claimed by
somebody who may have published it. What lost its record fires without a payload, unless an audit
finds that in its key.
KEYS    1  the partition's prefix
ARGV    1  which of the four the page is of: data, due, firingdata or firing
        2  cursor; 0 begins
        3  how many entries to look at, roughly
        4  lease in ms
Returns {next cursor, 0 at the end, how many were put back by their records, how many got a
record without a payload, when the first timer is due, or -1}.
If its reply is lost: the same page again changes nothing more. ]]
open(KEYS[1])
local lease_end = int(now + tonumber(ARGV[4]))
local restored, bare = 0, 0
local _, is_held = read_holds(redis.call('HGET', data_key, ':h:') or nil)
-- The fields of data that are of no timer.
local META = { [':l:'] = true, [':?:'] = true, [':h:'] = true }

-- How many entries one command is about.
local MANY = 100

-- missing_in calls restore_one with each name of a page of records, and its record, that a sorted set has not.
local function missing_in(set, page, restore_one)
  for first = 1, #page, 2 * MANY do
    local names = {}
    for i = first, math.min(first + 2 * MANY, #page + 1) - 1, 2 do names[#names + 1] = page[i] end
    local scores = redis.call('ZMSCORE', set, unpack(names))
    for i = 1, #names do
      if not scores[i] and not META[names[i]] then restore_one(names[i], page[first + 2 * i - 1]) end
    end
  end
end

-- due_of returns when a timer without a member is due, or nil for one whose key lives on without a TTL.
local function due_of(member, record)
  if string.byte(member) == 58 then return tonumber(string.match(member, '^:(%d+)') or now) end
  local at = expiry(member)
  if at == -1 then return nil end
  return at and at >= 0 and at or math.max(now, tonumber(string.match(record, '^[^:]*;R=%d+,(%d+)') or 0))
end

-- restore_timer gives a timer a member in due again. A record whose timer has fired was left by a claim that was refused in
-- the middle. A repetition leaves a tombstone with each occurrence, so there it says nothing.
local function restore_timer(member, record)
  local due = due_of(member, record)
  if not due then return cancel_pending(member) end
  if due == now and not is_repeating(record) and redis.call('ZSCORE', fired_key, member) then
    return redis.call('HDEL', data_key, member)
  end
  redis.call('ZADD', due_key, int(due), member)
  restored = restored + 1
end

-- restore_firing gives a firing a member in firing again. One whose timer is still due was never made: a claim was
-- refused in the middle.
local function restore_firing(ref)
  local due, attempt, key = string.match(ref, '^(%d+):(%d*):(.*)$')
  if not key or pending(key) == tonumber(due) then return redis.call('HDEL', firingdata_key, ref) end
  local hold = attempt ~= '0' and is_held and is_held(key, tonumber(due))
  redis.call('ZADD', firing_key, hold and int(HELD + due) or lease_end, ref)
  if hold then list_owed(prefix, { ref }) end
  restored = restored + 1
end

-- give_records gives the members of a page that have no record one without a payload. A contested timer goes: its record said
-- all of it.
local function give_records(hash, page)
  for i = 1, #page, 2 do
    if redis.call('HEXISTS', hash, page[i]) == 0 then
      if string.find(page[i], '^:[?d]:') then
        forget(page[i])
      else
        redis.call('HSET', hash, page[i], 'm:')
        bare = bare + 1
      end
    end
  end
end

-- scan returns a page, of as few records as possible where some are large.
local function scan(command, key)
  local count = command == 'HSCAN' and may_be_large() and 1 or ARGV[3]
  return redis.call(command, key, ARGV[2], 'COUNT', count)
end

local page
if ARGV[1] == 'data' then
  page = scan('HSCAN', data_key)
  missing_in(due_key, page[2], restore_timer)
elseif ARGV[1] == 'due' then
  page = scan('ZSCAN', due_key)
  give_records(data_key, page[2])
elseif ARGV[1] == 'firingdata' then
  page = scan('HSCAN', firingdata_key)
  missing_in(firing_key, page[2], restore_firing)
else
  page = scan('ZSCAN', firing_key)
  give_records(firingdata_key, page[2])
end
if restored > 0 then announce(head()) end
return { page[1], restored, bare, head() }
