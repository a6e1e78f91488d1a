#!lua flags=allow-oom
-- include: clock index hold move publish_claimed
--[[ claim_short is claim's short way: it claims what is due where all of it is as usual. It
does what claim would do; where anything else is to be done it changes nothing.
KEYS    1  the partition's prefix
ARGV    1  lease in ms
        2  how many firings at most
        3  how many bytes of payload at most
        4  the generation of the list of holds that the caller knows, 0 if nothing is held
Returns {seconds, microseconds, next, then for each firing its ref and its record}, all as
claim does; or, where claim has to be called, an empty array if nothing is due, and else
nil: if something is owed or a lease is over, if more is to be done for a member than to
claim it, if a key cannot be read or has another TTL, if another firing has the ref, or if
a record is large, if one of the timers is held, or if the list of holds is older than the
caller's.
If its reply is lost: as for claim. ]]
local t = open(KEYS[1])
local lease_end, limit, room = int(now + tonumber(ARGV[1])), tonumber(ARGV[2]), tonumber(ARGV[3])

local held_until = tonumber(redis.call('ZRANGE', firing_key, 0, 0, 'WITHSCORES')[2] or lease_end)
if held_until <= now then return nil end

local listed = redis.call('ZRANGE', due_key, 0, limit, 'WITHSCORES')
local members, dues, n, next_due = {}, {}, 0, math.min(held_until, tonumber(lease_end))
for i = 1, #listed, 2 do
  local member, due = listed[i], listed[i + 1]
  if n == limit or tonumber(due) > now then
    next_due = math.min(tonumber(due), next_due)
    break
  end
  if string.byte(member) == 58 then return nil end
  n = n + 1
  -- A score is in full as it is, except for some round ones.
  members[n], dues[n] = member, string.find(due, '^%d+$') and due or int(tonumber(due))
end
if n == 0 then return {} end

-- None of these keys should exist. But in the ms of its due time Redis still has a timer's.
local still, delete = redis.pcall('EXISTS', unpack(members)), {}
if type(still) ~= 'number' then return nil end
for i = n, 1, -1 do
  local due = tonumber(dues[i])
  -- Redis may have read the clock for EXISTS before the script did.
  if #delete == still or due < now - 1 then break end
  if redis.pcall('PEXPIRETIME', members[i]) == due then delete[#delete + 1] = members[i] end
end
if #delete < still then return nil end

local said = redis.call('HMGET', data_key, ':l:', ':?:', ':h:')
local may_be_large, contested_until = said[1], said[2]
if said[3] or ARGV[4] ~= '0' then
  local generation, held = read_holds(said[3])
  if generation < tonumber(ARGV[4]) then return nil end
  for i = 1, held and n or 0 do
    if held(members[i], tonumber(dues[i])) then return nil end
  end
end
local records = {}
for first = 1, n, GROUP do
  local last = math.min(first + GROUP - 1, n)
  for i = first, may_be_large and last or 0 do
    if redis.call('HSTRLEN', data_key, members[i]) > LARGE then return nil end
  end
  local group = redis.call('HMGET', data_key, unpack(members, first, last))
  for i = 1, #group do
    local record = group[i] or 'm:'
    records[#records + 1] = record
    room = room - #record
  end
  if room < 0 then return nil end
end
-- They are the first of due: so this costs half of what ZREM does.
local function take_out(count) redis.call('ZREMRANGEBYRANK', due_key, 0, count - 1) end
claims_beside_others = redis.call('EXISTS', prefix .. 'owed', prefix .. 'beside') > 0
local refs = fire_all(members, dues, records, lease_end, nil, take_out)
if not refs then return nil end
if #delete > 0 then redis.pcall('DEL', unpack(delete)) end

publish_claimed(members, contested_until)
local out = { t[1], t[2], next_due }
for i = 1, n do out[2 + 2 * i], out[3 + 2 * i] = refs[i], records[i] end
return out
