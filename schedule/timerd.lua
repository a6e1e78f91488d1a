--[[
timerd's schedule: every atomic step on it, in one place.

schedule/script.go cuts this file at its "--@" lines. The section "common" goes
before each of the others; "library", after "single" or "cluster", becomes the
function library that clients call, and each "script NAME" a script that only
timerd calls. Above them all stand the constants PREFIX and SUFFIX (of the
names of the index keys, around the hash tag), WAKE (a channel), WAKE_WITHIN (ms)
and MAX_PAYLOAD (bytes), and those of keys/slot.go.

The index, with t for the hash tag:
  timerd:{t}:due         ZSET  member -> due
  timerd:{t}:data        HASH  member -> record
  timerd:{t}:firing      ZSET  ref -> end of lease; 0: owed, nobody has claimed it
  timerd:{t}:firingdata  HASH  ref -> record
  timerd:{t}:fired       ZSET  tombstone -> when
  timerd:{t}:retried     ZSET  event id -> when its retry was set
  timerd:{t}:apps        SET   apps that timer_set was called for

Times are unix ms on this server's clock. A member is a timer's key, ":?:key"
for a doubt (see contest), ":d:key" for a doubt that was dismissed, or
":due.attempt:key" for a retry that waits beside a newer timer of its key; data
has their names in ":b:key". No timer key begins with a colon. A ref is
"due:attempt:key". A record is "<attempt><flags>:<payload>": the attempt is
timerd's own count, empty where the payload decides, and the flags are
  m  there is no payload      l  the payload was too large
  e  the key was evicted      x  fired because of its expired event
The record of a doubt is "<due><flags>/<record>", with the flags
  !  the timer counts as run out    ?  the doubt is weak
A tombstone is a timer's key that lately fired, or ":c:key" for one that was
cancelled after its key had run out; both explain an expired event yet to come.
":u:key" says that a timer was cancelled since its key last fired. ":i:due:key"
stands for a firing whose attempt may be above 1, so that no retry gets its id.

Every step moves a timer as a whole: it is in due or in firing, never in both
and never in neither, until it is cancelled or settled. So a script that never
ran, ran twice, or ran beside another one loses nothing and doubles nothing.
]]

--@ common
-- The value of a trigger key that timerd wrote begins so: the payload is in the
-- index. What follows is the key's own, so that RENAME and COPY do not pass one
-- timer's mark off as another's.
local MARK, MARK_BYTES = '\0tmd', 8
-- For how long a doubt waits for the expired event that would settle it, in ms.
local GRACE = 10000
-- An expired event is explained by a tombstone that is not older than this, in
-- ms. An event that is older itself than OLD proves nothing about a timer that the
-- index does not know: others may have fired and forgotten it meanwhile.
local FRESH, OLD = 4000, 3000
-- By how much the clock of a server that takes over may be behind, in ms.
local SKEW = 2000
-- How long a tombstone is kept, in ms, and how many one call removes at most:
-- more than one claim adds, so that they never pile up.
local REMEMBER, TRIM = 60000, 320

local now, now_text, due_key, data_key, firing_key, firingdata_key, fired_key, retried_key, apps_key

-- open reads the clock and names the index. It returns TIME's reply.
local function open(prefix)
  local t = redis.call('TIME')
  now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
  now_text = string.format('%.0f', now)
  due_key, data_key = prefix .. 'due', prefix .. 'data'
  firing_key, firingdata_key = prefix .. 'firing', prefix .. 'firingdata'
  fired_key, retried_key, apps_key = prefix .. 'fired', prefix .. 'retried', prefix .. 'apps'
  return t
end

-- int writes a time in full; Lua by itself would write it in 14 digits. Where many
-- commands get the same time it is written once: that costs more than most of them.
local function int(n) return string.format('%.0f', n) end

-- pending returns when a member is due, or nil.
local function pending(member)
  return tonumber(redis.call('ZSCORE', due_key, member) or nil)
end

-- mark returns the value of the trigger key of a timer that timerd wrote.
local function mark(key) return MARK .. string.sub(redis.sha1hex(key), 1, MARK_BYTES - #MARK) end

-- age returns how long ago a tombstone was made, or nil.
local function age(tombstone)
  local at = tonumber(redis.call('ZSCORE', fired_key, tombstone) or nil)
  return at and now - at
end

-- forget takes a member out of the schedule.
local function forget(member)
  redis.call('ZREM', due_key, member)
  redis.call('HDEL', data_key, member)
end

-- flags returns the flags of a record.
local function flags(record) return string.match(record, '^%d*(%a*):') or 'm' end

-- flagged returns a record with one flag added.
local function flagged(record, flag)
  if string.find(flags(record), flag, 1, true) then return record end
  return (string.gsub(record, '^%d*', '%0' .. flag, 1))
end

-- states_attempt tells whether a payload may state its attempt: it may be that of
-- a JSON object with a field attempt, written with escapes or without.
local function states_attempt(payload)
  return string.find(payload, 'attempt', 1, true) or string.find(payload, '\\u', 1, true)
end

-- identity returns the tombstone that keeps retries from getting the id of a
-- firing, or nil where none can: they have attempts above 1.
local function identity(key, due, attempt, record)
  if attempt == '1' or attempt == '' and not states_attempt(record) then return nil end
  return ':i:' .. due .. ':' .. key
end

-- attempt_of returns the attempt that a record states, or an empty string.
local function attempt_of(record)
  if string.byte(record) == 58 then return '' end -- as nearly all do
  return string.match(record, '^%d*')
end

-- bury adds the tombstones of a firing, whose due time is given in text, to the
-- arguments of a ZADD.
local function bury(tombstones, key, due, attempt, record)
  local n = #tombstones
  tombstones[n + 1], tombstones[n + 2] = now_text, key
  local id = identity(key, due, attempt, record)
  if id then tombstones[n + 3], tombstones[n + 4] = int(now + REMEMBER), id end
end

-- fire puts a firing where it is owed or, with a lease end, claimed. A ref that
-- is taken belongs to another firing of the same due time: this one moves back
-- by 1 ms, because forward might be too early. It returns the ref.
local function fire(key, due, record, lease_end)
  local attempt = attempt_of(record)
  local ref = int(due) .. ':' .. attempt .. ':' .. key
  while redis.call('ZADD', firing_key, 'NX', lease_end, ref) == 0 do
    due = due - 1
    ref = int(due) .. ':' .. attempt .. ':' .. key
  end
  redis.call('HSET', firingdata_key, ref, record)
  local tombstones = {}
  bury(tombstones, key, int(due), attempt, record)
  redis.call('ZADD', fired_key, unpack(tombstones))
  return ref
end

-- How many timers are moved or taken in in one go, for fewer commands; and not more,
-- because their payloads are read before there is known to be room for them.
local GROUP = 32

-- fire_all moves pending timers, with their due times in text and their records, to
-- where fire puts them: for each group of commands instead of for each timer. It
-- returns their refs.
local function fire_all(members, dues, records, lease_end)
  local refs, firing, firingdata, tombstones = {}, {}, {}, {}
  if #members == 0 then return refs end
  for i = 1, #members do
    local record = records[i]
    local attempt = attempt_of(record)
    local ref = dues[i] .. ':' .. attempt .. ':' .. members[i]
    refs[i] = ref
    firing[2 * i - 1], firing[2 * i] = lease_end, ref
    firingdata[2 * i - 1], firingdata[2 * i] = ref, record
    bury(tombstones, members[i], dues[i], attempt, record)
  end
  redis.call('ZREM', due_key, unpack(members))
  redis.call('HDEL', data_key, unpack(members))
  local taken = redis.call('ZMSCORE', firing_key, unpack(refs))
  for i = 1, #members do
    if taken[i] then -- by another firing, which stays as it is
      refs[i] = fire(members[i], tonumber(dues[i]), records[i], lease_end)
      firing[2 * i], firingdata[2 * i - 1] = refs[i], refs[i]
    end
  end
  redis.call('ZADD', firing_key, unpack(firing))
  redis.call('HSET', firingdata_key, unpack(firingdata))
  redis.call('ZADD', fired_key, unpack(tombstones))
  return refs
end

-- fire_retry is fire for a retry. The id of an event knows no refs: it is made of
-- the key, the due time and the attempt, which a payload may have stated. So the
-- retry moves back from the due time of any firing that may have its attempt.
local function fire_retry(key, due, record, lease_end)
  while pending(key) == due or redis.call('ZSCORE', firing_key, int(due) .. '::' .. key)
    or redis.call('ZSCORE', fired_key, ':i:' .. int(due) .. ':' .. key) do
    due = due - 1
  end
  return fire(key, due, record, lease_end)
end

-- owe moves a pending timer to where it is owed, safe from being overwritten.
local function owe(key, due, flag)
  local record = redis.call('HGET', data_key, key) or 'm:'
  if flag then record = flagged(record, flag) end
  forget(key)
  fire(key, due, record, 0)
end

-- besides returns the retries that wait beside a key's newer timer, each
-- followed by a space, or nil.
local function besides(key) return redis.call('HGET', data_key, ':b:' .. key) or nil end

-- leave takes a retry that waited beside a newer timer out of the schedule.
local function leave(member, key)
  forget(member)
  local names, name = besides(key) or '', string.match(member, '^:([^:]*):')
  local rest = string.gsub(names, '[^ ]+ ', function(n) if n == name .. ' ' then return '' end end)
  if rest == '' then
    redis.call('HDEL', data_key, ':b:' .. key)
  else
    redis.call('HSET', data_key, ':b:' .. key, rest)
  end
end

-- hash_payload writes a hash as a JSON object in HGETALL's order, or returns
-- nil where that would exceed the payload limit.
local function hash_payload(key, max)
  if 6 * redis.call('HLEN', key) > max then return nil end
  local names = redis.call('HKEYS', key)
  local size = 6 * #names
  for i = 1, #names do
    if size > max then return nil end
    size = size + #names[i] + redis.call('HSTRLEN', key, names[i])
  end
  if size > max then return nil end
  local pairs_of = redis.call('HGETALL', key)
  local out = {}
  for i = 1, #pairs_of, 2 do
    out[#out + 1] = cjson.encode(pairs_of[i]) .. ':' .. cjson.encode(pairs_of[i + 1])
  end
  local json = '{' .. table.concat(out, ',') .. '}'
  if #json > max then return nil end
  return json
end

-- How many bytes of values record_of has read, with a field of a hash counted as
-- FIELD_BYTES: what a call on several keys is bounded by.
local spent, FIELD_BYTES = 0, 64

-- record_of returns the record that a live trigger key stands for, or nil if
-- it has its mark and so says nothing of the payload.
local function record_of(key, max)
  local value = redis.pcall('GETRANGE', key, 0, max + MARK_BYTES)
  if type(value) == 'table' then
    if redis.call('TYPE', key).ok ~= 'hash' then return 'm:' end
    spent = spent + FIELD_BYTES * math.min(redis.call('HLEN', key), max)
    value = hash_payload(key, max)
    return value and ':' .. value or 'l:'
  end
  spent = spent + #value
  if string.sub(value, 1, #MARK) == MARK and #value >= MARK_BYTES then
    if string.sub(value, 1, MARK_BYTES) ~= mark(key) then return 'm:' end
    if #value == MARK_BYTES then return nil end
    value = string.sub(value, MARK_BYTES + 1)
  end
  if #value > max then return 'l:' end
  return ':' .. value
end

-- upsert makes the index agree with a live trigger key that runs out at at.
-- was is when the index has it due, or nil. It returns 1 for a new timer, 2
-- for one whose due time changed, 0 otherwise.
local function upsert(key, was, at, max)
  local record = record_of(key, max)
  if not was then
    redis.call('ZADD', due_key, at, key)
    redis.call('HSET', data_key, key, record or 'm:')
    return 1
  end
  if record and redis.call('HGET', data_key, key) ~= record then
    redis.call('HSET', data_key, key, record)
  end
  if was == at then return 0 end
  redis.call('ZADD', due_key, at, key)
  return 2
end

-- ran_out tells whether a key that lives on, though the index had it due, ran
-- out at that time and was set again since, as far as can be told without events:
-- not if it was last accessed before the due time for certain (the resolution is
-- a second), not if it has the mark, because timer_set owes for itself, and not
-- if its value is still the same. Otherwise better one firing too many than one
-- lost.
local function ran_out(key, due, record)
  local idle = redis.pcall('OBJECT', 'IDLETIME', key)
  if type(idle) == 'number' and now - idle * 1000 + 1000 < due then return false end
  local current = record_of(key, MAX_PAYLOAD)
  return current ~= nil and string.match(current, ':.*') ~= string.match(record, ':.*')
end

-- contest decides about a timer that the index has due while its key lives on,
-- with another TTL or with none. Either the key changed before the due time and
-- we have not heard, so nothing is owed; or it ran out, is owed, and was set
-- again. since is from when on the caller has heard every event.
--   In the second case Redis told so with an expired event before anything else.
-- If the caller has heard every event since the due time, it is the first case,
-- unless that event is still on its way: so the old timer stays as a doubt until
-- GRACE is over, and the event makes it owed after all.
--   Without events ran_out tells. It is asked now in any case: later the newer
-- timer may have fired or been cancelled, and the key says nothing any more.
-- lease_end is that of the claimer, or 0. weak says that the key is contested because
-- of an event that tells of a change: most probably of this one, and then no expired
-- event is on its way. It returns the ref of an owed firing or nil; the key's own
-- state is not yet taken in.
local function contest(key, due, since, lease_end, weak)
  local record = redis.call('HGET', data_key, key) or 'm:'
  local owed = ran_out(key, due, record)
  -- Where one is in doubt already, events are late by more than a whole life.
  local about = int(due) .. (owed and '!' or '') .. (weak and '?' or '') .. '/' .. record
  if due >= since and redis.call('HSETNX', data_key, ':?:' .. key, about) == 1 then
    redis.call('ZADD', due_key, now + GRACE, ':?:' .. key)
    return nil
  end
  if not owed then return nil end
  forget(key)
  return fire(key, due, record, lease_end)
end

-- doubted returns when what contest left in doubt was due, its record, whether it
-- counts as run out, and whether the doubt is weak; or nil. With the prefix ":d:" it
-- does so for what was dismissed.
local function doubted(key, prefix)
  local about = redis.call('HGET', data_key, (prefix or ':?:') .. key) or ''
  local due, owed, weak, record = string.match(about, '^(%d+)(!?)(%??)/(.*)$')
  return tonumber(due), record, owed == '!', weak == '?'
end

-- strengthen takes the weakness from a doubt.
local function strengthen(key)
  local about = redis.call('HGET', data_key, ':?:' .. key)
  redis.call('HSET', data_key, ':?:' .. key, (string.gsub(about, '^(%d+!?)%?', '%1', 1)))
end

-- doubt is doubted, and takes the doubt out of the schedule.
local function doubt(key, prefix)
  local due, record, owed = doubted(key, prefix)
  if due then forget((prefix or ':?:') .. key) end
  return due, record, owed
end

-- dismiss ends a doubt in favour of the newer state of the key: had the key run
-- out before, the event of that would have come first. That says something only of
-- a caller who would have heard it, since before the due time. What the doubt was
-- about is kept until GRACE is over: the event that dismissed it may have been older
-- than the doubt, and then an expired event follows that nothing else explains.
local function dismiss(key, since)
  local due, record = doubted(key)
  if due and since <= due then
    doubt(key)
    redis.call('ZADD', due_key, now + GRACE, ':d:' .. key)
    redis.call('HSET', data_key, ':d:' .. key, int(due) .. '/' .. record)
  end
end

-- differs tells whether a key that lives on runs out at another time, at, than
-- the index has it due, was. In the ms of its own due time a key is still there;
-- so may be one that was set again and runs out in this very ms.
local function differs(at, was) return at ~= -2 and at ~= was end

-- follow takes in the state of a key that lives on while the index has it due,
-- after contest. It returns as upsert does, or -1 for a cancelled timer.
local function follow(key, at, max)
  if at == -1 then
    forget(key)
    return -1
  end
  return upsert(key, pending(key), at, max)
end

-- announce tells the timerds when there is something to claim: 0 for at once.
local function announce(due)
  redis.pcall('PUBLISH', WAKE, string.sub(due_key, #PREFIX + 1, -#SUFFIX - 4) .. ' ' .. int(due))
end

-- wake tells the timerds of a member that has become the first to be due, unless
-- it is so far off that they find it by themselves.
local function wake(member, due)
  if due <= now + WAKE_WITHIN and redis.call('ZRANGE', due_key, 0, 0)[1] == member then announce(due) end
end

-- head returns the first due time, or -1.
local function head()
  local first = redis.call('ZRANGE', due_key, 0, 0, 'WITHSCORES')
  return tonumber(first[2] or -1)
end

--@ single
-- enter opens the index of a timer.
local function enter() open(PREFIX .. SINGLE .. SUFFIX) end

--@ cluster
-- tag returns the hash tag of a slot's index, as keys.SlotPartition does.
local function tag(slot)
  local bits, letters = TAG_BASE, {}
  for i = 1, #TAG_BITS do
    if slot % 2 == 1 then bits = bit.bxor(bits, TAG_BITS[i]) end
    slot = math.floor(slot / 2)
  end
  for i = 1, TAG_LETTERS do
    letters[i] = string.char(TAG_FIRST + bits % 8)
    bits = math.floor(bits / 8)
  end
  return table.concat(letters)
end

-- enter opens the index of a timer, in the timer's own slot. While that moves from
-- one server to another, this one has only some of the keys, and an access to
-- another would end the function in the middle of its writes. So it asks for two at
-- once, one of which never exists: that is refused for as long as the slot moves.
-- Then enter returns an error reply that has the client try again.
local function enter(key)
  local prefix = PREFIX .. tag(redis.call('CLUSTER', 'KEYSLOT', key)) .. SUFFIX
  open(prefix)
  if type(redis.pcall('EXISTS', due_key, prefix .. 'moving')) == 'table' then
    return redis.error_reply('TRYAGAIN timerd: the slot of the key is moving to another server')
  end
end

--@ library
local MAX_KEY, MAX_PART, MAX_DELAY, MAX_ATTEMPT, MAX_APPS = 1024, 128, 315360000000, 2147483647, 1000

local function fault(text) return redis.error_reply('ERR timerd: ' .. text) end

-- key_fault says what is wrong with a timer key, or returns nil.
local function key_fault(key)
  local app, module, typ = string.match(key, '^([^:]+):([^:]+):([^:]+):.+$')
  if not app then
    return 'the key is not a timer key: want app:module:type:id with four non-empty parts'
  end
  if #key > MAX_KEY then
    return 'the key has ' .. #key .. ' bytes, at most ' .. MAX_KEY .. ' are allowed'
  end
  if #app > MAX_PART or #module > MAX_PART or #typ > MAX_PART then
    return 'app, module and type of the key may have at most ' .. MAX_PART .. ' bytes each'
  end
end

-- introduce tells the timerds of an app that timer_set is called for the first
-- time for, so that they follow its trigger keys whatever their namespaces say.
local function introduce(key)
  local app = string.match(key, '^[^:]+')
  if redis.call('SADD', apps_key, app) == 0 then return end
  if redis.call('SCARD', apps_key) > MAX_APPS then
    redis.call('SREM', apps_key, app)
  else
    redis.pcall('PUBLISH', WAKE, 'app ' .. app)
  end
end

-- whole reads an integer, or returns nil.
local function whole(s)
  if s and string.find(s, '^-?%d+$') and #s <= 16 then return tonumber(s) end
end

--[[ timer_set KEY  PAYLOAD (PX ms | EX s | PXAT unix-ms | EXAT unix-s) [NX | XX] [ATTEMPT n]
Sets a timer: writes the trigger key and the index in one step. Returns the due
time in unix ms, or nil where NX found a timer or a key, or XX found none. An
error changes nothing. A timer of the same key that was due already is owed and
fires too; one that was pending is replaced. ]]
local function timer_set(keys, args)
  local key, payload = keys[1], args[1]
  if #keys ~= 1 then return fault('timer_set wants one key, got ' .. #keys) end
  local wrong = key_fault(key)
  if wrong then return fault(wrong) end
  if #args < 3 then return fault('timer_set wants: payload, then PX ms, EX s, PXAT unix-ms or EXAT unix-s') end
  if #payload > MAX_PAYLOAD then
    return fault('the payload has ' .. #payload .. ' bytes, at most ' .. int(MAX_PAYLOAD) .. ' are allowed')
  end
  local moving = enter(key)
  if moving then return moving end

  local due, when, exists, attempt
  local i = 2
  while i <= #args do
    local option = string.upper(args[i])
    if option == 'NX' or option == 'XX' then
      if exists then return fault('NX or XX can be given once') end
      exists = option
      i = i + 1
    elseif option == 'ATTEMPT' then
      attempt = whole(args[i + 1])
      if not attempt or attempt < 1 or attempt > MAX_ATTEMPT then
        return fault('ATTEMPT wants an integer from 1 to ' .. int(MAX_ATTEMPT))
      end
      i = i + 2
    elseif option == 'PX' or option == 'EX' or option == 'PXAT' or option == 'EXAT' then
      if when then return fault('PX, EX, PXAT or EXAT can be given once') end
      when = whole(args[i + 1])
      if not when then return fault(option .. ' wants an integer') end
      if option == 'EX' or option == 'EXAT' then when = when * 1000 end
      due = (option == 'PX' or option == 'EX') and now + when or when
      i = i + 2
    else
      return fault('unknown option: want PX, EX, PXAT, EXAT, NX, XX or ATTEMPT')
    end
  end
  if not due then return fault('no time given: want PX ms, EX s, PXAT unix-ms or EXAT unix-s') end
  if due <= now then return fault('the delay must be greater than 0') end
  if due - now > MAX_DELAY then return fault('the delay is over 10 years') end

  local was, at = pending(key), redis.call('PEXPIRETIME', key)
  local live = at == -1 or at > now
  if at == -2 and was and was > now then -- evicted, or deleted and we have not heard
    live = string.find(flags(redis.call('HGET', data_key, key) or ':'), 'e', 1, true) ~= nil
  end
  if exists == 'NX' and live or exists == 'XX' and not live then return false end

  if was and was <= now then
    if differs(at, was) then contest(key, was, 0, 0) else owe(key, was) end
  end
  introduce(key)
  redis.call('SET', key, mark(key), 'PXAT', int(due))
  redis.call('ZADD', due_key, due, key)
  redis.call('HSET', data_key, key, (attempt and int(attempt) or '') .. ':' .. payload)
  wake(key, due)
  return due
end

--[[ timer_cancel KEY
Cancels a timer and deletes its trigger key. Returns "cancelled"; "fired" if it
is firing or fired within the last half minute at least; or "unknown". A key
without a TTL is no trigger key and stays. ]]
local function timer_cancel(keys, args)
  if #keys ~= 1 then return fault('timer_cancel wants one key, got ' .. #keys) end
  if #args > 0 then return fault('timer_cancel takes no arguments') end
  local key = keys[1]
  local wrong = key_fault(key)
  if wrong then return fault(wrong) end
  local moving = enter(key)
  if moving then return moving end
  local was, at = pending(key), redis.call('PEXPIRETIME', key)
  local deleted = at ~= -1 and redis.call('DEL', key) == 1
  local names = besides(key)
  for name in string.gmatch(names or '', '[^ ]+') do forget(':' .. name .. ':' .. key) end
  redis.call('HDEL', data_key, ':b:' .. key)
  -- In the very ms of its due time a claimed timer's key is still there.
  if was or names or deleted and (at > now or not age(key)) then
    forget(key)
    if was and (not deleted or was <= now) then redis.call('ZADD', fired_key, now, ':c:' .. key) end
    if age(key) then redis.call('ZADD', fired_key, now, ':u:' .. key) end
    return 'cancelled'
  end
  local fired, cancelled = age(key), age(':u:' .. key)
  if fired and not (cancelled and cancelled <= fired) then return 'fired' end
  return 'unknown'
end

-- payload_attempt returns the attempt that a payload states, or 1.
local function payload_attempt(payload)
  if states_attempt(payload) then
    local ok, object = pcall(cjson.decode, payload)
    local n = ok and type(object) == 'table' and object.attempt
    if type(n) == 'number' and n >= 1 and n <= MAX_ATTEMPT and n == math.floor(n) then return n end
  end
  return 1
end

--[[ timer_get KEY
Returns nil where no timer is pending, or {"due", ms, "attempt", n, "payload",
bytes}; the payload is nil where there is none. It changes nothing. ]]
local function timer_get(keys, args)
  if #keys ~= 1 then return fault('timer_get wants one key, got ' .. #keys) end
  if #args > 0 then return fault('timer_get takes no arguments') end
  local key = keys[1]
  local wrong = key_fault(key)
  if wrong then return fault(wrong) end
  local moving = enter(key)
  if moving then return moving end
  local due, at = pending(key), redis.call('PEXPIRETIME', key)
  local record
  if at == -1 then return false end
  if at > now then
    due, record = at, record_of(key, MAX_PAYLOAD)
  end
  if not due then return false end
  record = record or redis.call('HGET', data_key, key) or 'm:'
  local attempt, flag, payload = string.match(record, '^(%d*)(%a*):(.*)$')
  if string.find(flag, '[ml]') then payload = nil end
  return { 'due', due, 'attempt', tonumber(attempt) or payload_attempt(payload or ''), 'payload', payload or false }
end

redis.register_function { function_name = 'timer_set', callback = timer_set }
redis.register_function { function_name = 'timer_cancel', callback = timer_cancel, flags = { 'allow-oom' } }
redis.register_function { function_name = 'timer_get', callback = timer_get, flags = { 'no-writes' } }

--@ script observe
--[[ Takes in what keyspace events hint at, in their order.
KEYS    1  the partition's due set; it names the partition
ARGV    1  from when on the caller has heard every event, in ms
        2  when the first of these happened at the earliest, in ms
        3  for how long of that nothing could happen to their timers, in ms
        then pairs of a kind and a timer's key:
        t  touched: the key may live; if it does not, another event says why
        a  audited: the same without an event
        g  gone: deleted, renamed or moved away
        v  evicted
        x  expired: it did run out, whatever the index says
        In upper case they are for timers that the index knows already.
Returns {first due time or -1, owed, adopted, rescheduled, cancelled, pairs}; the
four in the middle count timers. pairs is how many were taken in: fewer than
given where their payloads are large. ]]
local since, heard, held = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
FRESH, OLD = FRESH + held, OLD + held
local owed, adopted, rescheduled, cancelled = 0, 0, 0, 0

local function count(outcome)
  if outcome == 1 then adopted = adopted + 1
  elseif outcome == 2 then rescheduled = rescheduled + 1
  elseif outcome == -1 then cancelled = cancelled + 1 end
end

-- touch makes the index agree with the key, as far as the key lives. changed says
-- that an event tells of a change.
local function touch(key, was, at, changed)
  if at == -2 then return end
  if was and was <= now and differs(at, was) then
    if contest(key, was, since, 0, changed) then owed = owed + 1 end
    return count(follow(key, at, MAX_PAYLOAD))
  end
  if at == -1 then
    if was then count(follow(key, at, MAX_PAYLOAD)) end
  elseif was or at > now or not redis.call('ZSCORE', fired_key, key) then
    count(upsert(key, was, at, MAX_PAYLOAD))
  end
end

-- How many bytes of payload a call reads, about.
local BUDGET = 1048576

local kinds = {
  a = function(key, was, at) touch(key, was, at) end,

  t = function(key, was, at)
    dismiss(key, since)
    touch(key, was, at, true)
  end,

  g = function(key, was, at)
    if at ~= -2 then return touch(key, was, at) end
    if was and was > now and not string.find(flags(redis.call('HGET', data_key, key) or 'm:'), 'e', 1, true) then
      forget(key)
      cancelled = cancelled + 1
    end
  end,

  v = function(key, was, at)
    if at ~= -2 then return touch(key, was, at) end
    if was then
      redis.call('HSET', data_key, key, flagged(redis.call('HGET', data_key, key) or 'm:', 'e'))
    end
  end,

  x = function(key, was, at, known)
    -- A doubt is about an older timer. The event is that one's; but if the doubt is
    -- weak and the newer timer is not still to come, the next one is.
    local due, record, _, weak = doubted(key)
    if weak and not (was and was > now) then
      strengthen(key)
      due = nil
    end
    if due then
      doubt(key)
      fire(key, due, flagged(record, 'x'), 0)
      owed = owed + 1
    elseif was and was <= now then
      owe(key, was, 'x')
      owed, was = owed + 1, nil
    else
      local told = math.min(age(key) or FRESH + 1, age(':c:' .. key) or FRESH + 1)
      if told <= FRESH then return touch(key, was, at) end
      -- Nothing explains the event, so a timer ran out that we know nothing of, or
      -- not that its due time had changed.
      due, record = doubt(key)
      if not due then due, record = doubt(key, ':d:') end
      if due then
        fire(key, due, flagged(record, 'x'), 0)
      elseif was and at == -2 then
        owe(key, now, 'x')
        was = nil
      elseif known then
        return touch(key, was, at)
      else
        fire(key, now, 'mx:', 0)
      end
      owed = owed + 1
    end
    touch(key, was, at)
  end,
}

-- one takes in one hint.
local function one(kind, key)
  local was, lower = pending(key), string.lower(kind)
  local known = kind ~= lower or kind == 'x' and now - heard > OLD
  if not known or was or redis.call('HEXISTS', data_key, ':?:' .. key) == 1 then
    kinds[lower](key, was, redis.call('PEXPIRETIME', key), known)
  end
end

-- many takes in hints of different keys, of each kind and name, as far as their
-- payloads are not too large, and returns how many. What there mostly is it does in
-- few commands: keys that are new or still pending, and expired events of timers
-- whose claim they have outrun, or that have just been fired.
local function many(given, names)
  local doubts = {}
  for i = 1, #names do doubts[i] = ':?:' .. names[i] end
  doubts = redis.call('HMGET', data_key, unpack(doubts))
  local was, told = redis.call('ZMSCORE', due_key, unpack(names)), redis.call('ZMSCORE', fired_key, unpack(names))
  local gone = string.lower(given[1]) == 'x' and redis.call('EXISTS', unpack(names)) == 0
  local late, dues, times, records = {}, {}, {}, {}
  local taken = 0
  while taken < #names and spent <= BUDGET do
    taken = taken + 1
    local kind, key, due = given[taken], names[taken], tonumber(was[taken] or nil)
    local lower = string.lower(kind)
    if doubts[taken] or lower == 'g' or lower == 'v' then
      one(kind, key)
    elseif due or kind == lower then
      local at = gone and -2 or redis.call('PEXPIRETIME', key)
      local owing = due and due <= now
      if lower == 'x' and at == -2 and owing then
        late[#late + 1], dues[#dues + 1] = key, int(due)
      elseif lower == 'x' then
        if at ~= -2 or due or now - tonumber(told[taken] or 0) > FRESH then one(kind, key) end
      elseif at > now and not due then
        times[#times + 1], times[#times + 2] = at, key
        records[#records + 1], records[#records + 2] = key, record_of(key, MAX_PAYLOAD) or 'm:'
        count(1)
      elseif at > now and not owing then
        count(upsert(key, due, at, MAX_PAYLOAD))
      elseif at ~= -2 then
        one(kind, key)
      end
    end
  end
  if #times > 0 then
    redis.call('ZADD', due_key, unpack(times))
    redis.call('HSET', data_key, unpack(records))
  end
  if #late > 0 then
    local owe_records = redis.call('HMGET', data_key, unpack(late))
    for i = 1, #late do
      owe_records[i] = flagged(owe_records[i] or 'm:', 'x')
      spent = spent + #owe_records[i]
    end
    fire_all(late, dues, owe_records, '0')
    owed = owed + #late
  end
  return taken
end

open(string.sub(KEYS[1], 1, -4))
local given, taken = 0, 0
while taken == given and 4 + 2 * taken <= #ARGV and spent <= BUDGET do
  local given_kinds, names, seen = {}, {}, {}
  repeat
    local i = 4 + 2 * given
    given_kinds[#names + 1], names[#names + 1] = ARGV[i], ARGV[i + 1]
    seen[ARGV[i + 1]] = true
    given = given + 1
  until #names == GROUP or 4 + 2 * given > #ARGV or seen[ARGV[5 + 2 * given]]
  taken = taken + many(given_kinds, names)
end
return { head(), owed, adopted, rescheduled, cancelled, taken }

--@ script claim
--[[ Claims what is owed, what was claimed by someone whose lease ran out, and
what is due, in this order, for lease ms.
KEYS    1  the partition's due set
ARGV    1  lease in ms
        2  how many firings at most
        3  how many bytes of payload at most; one firing is claimed in any case
        4  from when on the caller has heard every event, in ms
Returns {seconds, microseconds, next, trimmed, rescheduled, cancelled, then for
each firing its ref, its record and how it was: "o" owed, "r" reclaimed, "d"
due}. The first two are the time of the claim. next is when there is something
to claim again, in ms: a due time, the end of a lease, 0 for at once, or -1.
trimmed is 1 where more tombstones are to be removed. ]]
local t = open(string.sub(KEYS[1], 1, -4))
local lease_end, limit, room = int(now + tonumber(ARGV[1])), tonumber(ARGV[2]), tonumber(ARGV[3])
local since = tonumber(ARGV[4])
local out = { t[1], t[2], -1, 0, 0, 0 }
local claimed = 0

local function take(ref, record, how)
  local n = #out
  out[n + 1], out[n + 2], out[n + 3] = ref, record, how
  claimed, room = claimed + 1, room - #record
end

local held = redis.call('ZRANGEBYSCORE', firing_key, '-inf', now_text, 'WITHSCORES', 'LIMIT', 0, limit)
for first = 1, #held, 2 * GROUP do
  if room <= 0 then break end
  local refs, leases, tombstones = {}, {}, {}
  for i = first, math.min(first + 2 * GROUP, #held + 1) - 1, 2 do refs[#refs + 1] = held[i] end
  local records = redis.call('HMGET', firingdata_key, unpack(refs))
  for i = 1, #refs do
    if room <= 0 then break end
    local ref, record = refs[i], records[i] or 'm:'
    local due, key = string.match(ref, '^(%d+):%d*:(.*)$')
    leases[2 * i - 1], leases[2 * i] = lease_end, ref
    bury(tombstones, key or ref, due or '0', attempt_of(record), record)
    take(ref, record, tonumber(held[first + 2 * i - 1]) == 0 and 'o' or 'r')
  end
  redis.call('ZADD', firing_key, unpack(leases))
  redis.call('ZADD', fired_key, unpack(tombstones))
end

-- ran_out_of returns those of due timers whose keys have run out. The others it takes
-- in as they are now.
local function ran_out_of(members, dues)
  if redis.call('EXISTS', unpack(members)) == 0 then return members, dues end
  local names, times = {}, {}
  for i = 1, #members do
    local member, due = members[i], tonumber(dues[i])
    local at = redis.call('PEXPIRETIME', member)
    if differs(at, due) then
      local ref = contest(member, due, since, lease_end)
      if ref then take(ref, redis.call('HGET', firingdata_key, ref), 'd') end
      local outcome = follow(member, at, MAX_PAYLOAD)
      if outcome == -1 then out[6] = out[6] + 1 elseif outcome == 2 then out[5] = out[5] + 1 end
    else
      -- In the ms of its due time Redis still has the key. Left alone it would
      -- report it expired when it gets round to that, long after the tombstone.
      if at ~= -2 then redis.call('DEL', member) end
      names[#names + 1], times[#times + 1] = member, dues[i]
    end
  end
  return names, times
end

-- move claims due timers as far as there is room.
local function move(members, dues)
  if #members > 0 then members, dues = ran_out_of(members, dues) end
  if #members == 0 then return end
  local records = redis.call('HMGET', data_key, unpack(members))
  local names, times, moved, left = {}, {}, {}, room
  for i = 1, #members do
    if left <= 0 then break end
    names[i], times[i], moved[i] = members[i], dues[i], records[i] or 'm:'
    left = left - #moved[i]
  end
  local refs = fire_all(names, times, moved, lease_end)
  for i = 1, #refs do take(refs[i], moved[i], 'd') end
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
  elseif name == 'd' then
    forget(member)
  elseif name == '?' then
    -- No event has come. That says something only if it would have been heard.
    local was, record, owed = doubt(beside_of)
    if owed and was < since then
      take(fire(beside_of, was, record, lease_end), record, 'd')
    end
  else
    local record = redis.call('HGET', data_key, member) or 'm:'
    leave(member, beside_of)
    take(fire_retry(beside_of, tonumber(due), record, lease_end), record, 'd')
  end
end
move(group, group_due)

out[3] = head()
local lease = tonumber(redis.call('ZRANGE', firing_key, 0, 0, 'WITHSCORES')[2])
if lease and (out[3] == -1 or lease < out[3]) then out[3] = lease end

if lease ~= 0 then
  local old = redis.call('ZCOUNT', fired_key, '-inf', int(now - REMEMBER - tonumber(ARGV[1])))
  if old > 0 then redis.call('ZREMRANGEBYRANK', fired_key, 0, math.min(old, TRIM) - 1) end
  if old > TRIM then out[4] = 1 end
end
return out

--@ script release
--[[ Gives claims back, so that anybody may claim them at once. One that was
claimed again meanwhile stays as it is.
KEYS    1  the partition's due set
ARGV    pairs of a ref and the end of the lease that it was claimed under
Returns how many were given back. ]]
open(string.sub(KEYS[1], 1, -4))
local released = 0
for i = 1, #ARGV, 2 do
  if tonumber(redis.call('ZSCORE', firing_key, ARGV[i]) or nil) == tonumber(ARGV[i + 1]) then
    redis.call('ZADD', firing_key, 0, ARGV[i])
    released = released + 1
  end
end
return released

--@ script retry
--[[ Sets a timer again after a failed attempt: once per event id, however often
it is called. Where the key has been set anew it waits beside the newer timer;
where it is due already it is owed.
KEYS    1  the partition's due set
ARGV    1  id of the event whose attempt failed
        2  the timer's key
        3  when the retry is due
        4  its attempt
        5  "m" or "l" where there is no payload, else empty
        6  payload
Returns the due time, or -1 where this event's retry was set before. ]]
open(string.sub(KEYS[1], 1, -4))
if redis.call('ZADD', retried_key, 'NX', now, ARGV[1]) == 0 then return -1 end
local key, due, record = ARGV[2], math.max(tonumber(ARGV[3]), 1), ARGV[4] .. ARGV[5] .. ':' .. ARGV[6]
if due <= now then
  local ref = fire_retry(key, due, record, 0)
  announce(0)
  return tonumber(string.match(ref, '^%d+'))
end
local was = pending(key)
if was == due then due = due + 1 end
if not was and redis.call('EXISTS', key) == 0 then
  redis.call('SET', key, mark(key), 'PXAT', int(due))
  redis.call('ZADD', due_key, due, key)
  redis.call('HSET', data_key, key, record)
  wake(key, due)
  return due
end
local name, member
repeat
  name = int(due) .. '.' .. ARGV[4]
  member = ':' .. name .. ':' .. key
  local added = redis.call('ZADD', due_key, 'NX', due, member)
  if added == 0 then due = due + 1 end
until added == 1
redis.call('HSET', data_key, member, record)
redis.call('HSET', data_key, ':b:' .. key, (besides(key) or '') .. name .. ' ')
wake(member, due)
return due

--@ script audit
--[[ Compares one page of the index with the keys: pending timers whose key was
deleted or lost its TTL are cancelled, those whose TTL changed are rescheduled.
Timers that are due already are left to the claim; so are those without a key
whose time is so close that another server's clock may have been past it.
KEYS    1  the partition's due set
ARGV    1  cursor; 0 begins
        2  how many timers to look at, roughly
        3  1 if keys may have been evicted, so that a key's absence says nothing
Returns {next cursor, 0 at the end, timers looked at, rescheduled, cancelled}. ]]
open(string.sub(KEYS[1], 1, -4))
local page = redis.call('ZSCAN', due_key, ARGV[1], 'COUNT', ARGV[2])
local members, rescheduled, cancelled = page[2], 0, 0
for i = 1, #members, 2 do
  local key, due = members[i], tonumber(members[i + 1])
  if due > now and string.byte(key) ~= 58 then
    local at = redis.call('PEXPIRETIME', key)
    local lost = at == -1
    if at == -2 and ARGV[3] ~= '1' and due > now + SKEW then
      lost = not string.find(flags(redis.call('HGET', data_key, key) or 'm:'), 'e', 1, true)
    end
    if lost then
      forget(key)
      cancelled = cancelled + 1
    elseif at > now and at ~= due then
      rescheduled = rescheduled + 1
      upsert(key, due, at, MAX_PAYLOAD)
    end
  end
end
return { page[1], #members / 2, rescheduled, cancelled }

--@ script beat
--[[ Notes a sign of life of a timerd and returns who is alive, sorted.
KEYS    1  the partition's members set
ARGV    1  the timerd's instance id
        2  after how many ms of silence one is dead ]]
local t = redis.call('TIME')
local now_ms = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', int(now_ms - tonumber(ARGV[2])))
redis.call('ZADD', KEYS[1], now_ms, ARGV[1])
local alive = redis.call('ZRANGE', KEYS[1], 0, -1)
table.sort(alive)
return alive

--@ script settle
--[[ Forgets firings.
KEYS    1  the partition's due set
ARGV    their refs ]]
open(string.sub(KEYS[1], 1, -4))
redis.call('ZREM', firing_key, unpack(ARGV))
return redis.call('HDEL', firingdata_key, unpack(ARGV))

--@ script survey
--[[ Looks over many partitions of one server of a cluster.
ARGV    1  up to when, in ms from now, what is due counts
        2  lease in ms
        then the tags of the partitions
Returns {pending timers, firings, then for each partition with something to claim
its tag and when: a due time or the end of a lease in ms, 0 for at once, or -1 for
one that is not here as a whole}. ]]
local t = redis.call('TIME')
local now_ms = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
local horizon, old = now_ms + tonumber(ARGV[1]), now_ms - REMEMBER - tonumber(ARGV[2])
local total, firings, out = 0, 0, { 0, 0 }

-- first returns the lowest score of a sorted set, or nil.
local function first(key) return tonumber(redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]) end

for i = 3, #ARGV do
  local prefix = PREFIX .. ARGV[i] .. SUFFIX
  local due, firing, fired = prefix .. 'due', prefix .. 'firing', prefix .. 'fired'
  local here, at = redis.pcall('EXISTS', due, firing, fired, prefix .. 'moving')
  if type(here) == 'table' then
    at = -1
  elseif here > 0 then
    at = first(due)
    local lease, tombstone
    if here > 1 or not at then lease, tombstone = first(firing), first(fired) end
    if at then total = total + redis.call('ZCARD', due) end
    if lease then
      firings = firings + redis.call('ZCARD', firing)
      at = math.min(at or lease, lease)
    end
    if tombstone and tombstone < old then at = 0 end
  end
  if at and at <= horizon then out[#out + 1], out[#out + 2] = ARGV[i], at end
end
out[1], out[2] = total, firings
return out

--@ script apps
--[[ Returns the apps that timer_set was called for, of many partitions of one
server of a cluster.
ARGV    the tags of the partitions ]]
local seen, out = {}, {}
for i = 1, #ARGV do
  local apps = redis.pcall('SMEMBERS', PREFIX .. ARGV[i] .. SUFFIX .. 'apps')
  for j = 1, #apps do
    if not seen[apps[j]] then
      seen[apps[j]] = true
      out[#out + 1] = apps[j]
    end
  end
end
return out

--@ script trim
--[[ Forgets old event ids whose retry was set, in many partitions of one server of
a cluster.
ARGV    1  up to when, in ms
        2  how many of each partition at most
        then the tags of the partitions ]]
for i = 3, #ARGV do
  local retried = PREFIX .. ARGV[i] .. SUFFIX .. 'retried'
  local old = redis.pcall('ZCOUNT', retried, '-inf', ARGV[1])
  if type(old) == 'number' and old > 0 then
    redis.call('ZREMRANGEBYRANK', retried, 0, math.min(old, tonumber(ARGV[2])) - 1)
  end
end
return 0
