--[[ claim claims firings for a lease, in this order: what is owed, what was claimed by
somebody whose lease ran out, and what is due. It also removes old tombstones.
KEYS    1  the partition's prefix
ARGV    1  lease in ms
        2  how many firings at most
        3  how many bytes of payload at most; one firing is claimed in any case
        4  from when on the caller has heard every event, in ms
Returns {seconds, microseconds, next, trimmed, rescheduled, cancelled, set aside, the
key of one of those or an empty string, then for each firing its ref, its record and how
it was: "o" owed, "p" given back though perhaps published, "r" reclaimed, "d" due}. The first two are the time of the claim. next is when there is something
to claim again, in ms: a due time, the end of a lease, 0 for at once, or -1.
trimmed is 1 if more tombstones are to be removed.
If its reply is lost: the firings stay claimed until the lease ends. Then the next claim
has them, as reclaimed. ]]

-- How many tombstones one call removes at most: several times what one claim adds, so that
-- they never pile up though claim_short removes none.
local TRIM = 640

local t = open(KEYS[1])
local lease_end, limit, room = int(now + tonumber(ARGV[1])), tonumber(ARGV[2]), tonumber(ARGV[3])
local since = tonumber(ARGV[4])
local out = { t[1], t[2], -1, 0, 0, 0, 0, '' }
local claimed, told = 0, {}

local function take(ref, record, how)
  local n = #out
  out[n + 1], out[n + 2], out[n + 3] = ref, record, how
  claimed, room = claimed + 1, room - #record
end

-- What is held has at most half of a claim while something is due: it may be what was
-- given back because it cannot be published.
local first_due = head()
local most = first_due ~= -1 and first_due <= now and math.ceil(limit / 2) or limit
local held = redis.call('ZRANGEBYSCORE', firing_key, '-inf', now_text, 'WITHSCORES', 'LIMIT', 0, most)
for first = 1, #held, 2 * GROUP do
  if room <= 0 then break end
  local refs, leases, tombstones = {}, {}, {}
  for i = first, math.min(first + 2 * GROUP, #held + 1) - 1, 2 do refs[#refs + 1] = held[i] end
  local fits = fitting(firingdata_key, refs, room)
  local records = redis.call('HMGET', firingdata_key, unpack(refs, 1, fits))
  for i = 1, fits do
    local ref, record = refs[i], records[i] or 'm:'
    local due, key = string.match(ref, '^(%d+):%d*:(.*)$')
    leases[2 * i - 1], leases[2 * i] = lease_end, ref
    add_tombstones(tombstones, key or ref, due or '0', attempt_of(record), record)
    local score = tonumber(held[first + 2 * i - 1])
    take(ref, record, score % 1 == 0.75 and 'p' or (score == 0 or score % 1 ~= 0) and 'o' or 'r')
  end
  redis.call('ZADD', firing_key, unpack(leases))
  redis.call('ZADD', fired_key, unpack(tombstones))
  unlist_owed(prefix, { unpack(refs, 1, fits) })
  if fits < #refs then room = 0 end
end

-- select_run_out returns those of due timers whose keys have run out. It contests the
-- others and takes in their keys as they are now, as many as their payloads allow.
local function select_run_out(members, dues)
  if redis.pcall('EXISTS', unpack(members)) == 0 then return members, dues end
  local names, times = {}, {}
  for i = 1, #members do
    if spent > BUDGET then break end
    local member, due = members[i], tonumber(dues[i])
    local at = expiry(member)
    if not at and set_aside(member, due) then
      out[7], out[8] = out[7] + 1, member
    elseif at and differs(at, due) then
      local ref = contest(member, due, since, lease_end)
      if ref then take(ref, redis.call('HGET', firingdata_key, ref), 'd') end
      local outcome = follow(member, at, MAX_PAYLOAD)
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

-- move claims due timers as far as there is room.
local function move(members, dues)
  if #members > 0 and room > 0 then members, dues = select_run_out(members, dues) end
  if #members == 0 or room <= 0 then return end
  local fits = fitting(data_key, members, room)
  local records = redis.call('HMGET', data_key, unpack(members, 1, fits))
  for i = 1, fits do records[i] = records[i] or 'm:' end
  local refs = fire_all(members, dues, records, lease_end, fire)
  for i = 1, fits do
    take(refs[i], records[i], 'd')
    told[#told + 1] = members[i]
  end
  if fits < #members then room = 0 end
end

-- claim_aside looks again at a timer that was set aside. If its key can be read now and
-- lives on, there are two cases: its TTL was changed before it ran out, or it was set
-- again since. In the ms in which a key runs out it may be that of a newer timer that
-- has been claimed, and says nothing.
local function claim_aside(member, key, due)
  local at = expiry(key)
  if not at or at >= 0 and at <= now then return redis.call('ZADD', due_key, next_look(due), member) end
  local record = redis.call('HGET', data_key, member) or 'm:'
  forget_beside(member, key)
  if at == -2 or set_again(key, due, record) then
    take(fire(key, due, record, lease_end), record, 'd')
    if at ~= -2 then follow(key, at, MAX_PAYLOAD) end
  elseif at == -1 then
    forget(key)
    out[6] = out[6] + 1
  else
    out[5] = out[5] + 1
    if not pending(key) then redis.call('HSET', data_key, key, record) end
    redis.call('ZADD', due_key, at, key)
  end
end

local members = claimed < limit and room > 0
  and redis.call('ZRANGEBYSCORE', due_key, '-inf', now_text, 'WITHSCORES', 'LIMIT', 0, limit - claimed) or {}
local group, group_due = {}, {}
for i = 1, #members, 2 do
  if room <= 0 then break end
  local member, due, name, beside_of = members[i], members[i + 1], nil, nil
  if string.byte(member) == 58 then name, beside_of = string.match(member, '^:([^:]*):(.*)$') end
  if not name then
    -- A score is in full as it is, except for some round ones.
    group[#group + 1] = member
    group_due[#group] = string.find(due, '^%d+$') and due or int(tonumber(due))
    if #group == GROUP then
      move(group, group_due)
      group, group_due = {}, {}
    end
  elseif name == '?' or name == 'd' then
    if spent > BUDGET then break end
    spent = spent + redis.call('HSTRLEN', data_key, member)
    -- No expired event has come. So nothing is owed, unless the caller may have missed
    -- the event: then check_ran_out's answer counts.
    local was, record, owed = read_contested(beside_of, ':' .. name .. ':')
    forget(member)
    if owed and was < since then
      take(fire(beside_of, was, record, lease_end), record, 'd')
    end
  else
    local aside, was = string.match(name, '^(s?)(%d+)')
    was = tonumber(was or due)
    if aside == 's' then
      if spent > BUDGET then break end
      spent = spent + redis.call('HSTRLEN', data_key, member)
      claim_aside(member, beside_of, was)
    else
      local record = redis.call('HGET', data_key, member) or 'm:'
      forget_beside(member, beside_of)
      take(fire_retry(beside_of, was, record, lease_end), record, 'd')
    end
  end
end
move(group, group_due)
if #told > 0 then tell_claimed(told, redis.call('HGET', data_key, ':?:')) end

out[3] = head()
local lease = tonumber(redis.call('ZRANGE', firing_key, 0, 0, 'WITHSCORES')[2])
if out[3] == -1 and not lease then redis.call('HDEL', data_key, ':l:', ':?:') end
if lease and (out[3] == -1 or lease < out[3]) then out[3] = lease end

if lease ~= 0 then
  local old = redis.call('ZCOUNT', fired_key, '-inf', int(now - REMEMBER - tonumber(ARGV[1])))
  if old > 0 then redis.call('ZREMRANGEBYRANK', fired_key, 0, math.min(old, TRIM) - 1) end
  if old > TRIM then out[4] = 1 end
end
return out
