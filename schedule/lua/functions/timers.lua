-- include: limits clock index common move firings fire beside payload contest announce count_call states partition
-- The function library: what clients call. A function gets the timer's key alone, and
-- finds the partition by it. In a cluster it answers TRYAGAIN, and has changed nothing,
-- while the slot of the key moves to another server.

local MAX_KEY, MAX_PART, MAX_DELAY, MAX_ATTEMPT = 1024, 128, 315360000000, 2147483647

local function fault(text) return redis.error_reply('ERR timerd: ' .. text) end

-- check_key returns what is wrong with a timer key, or nil.
local function check_key(key)
  if #key > MAX_KEY then
    return 'the key has ' .. #key .. ' bytes, at most ' .. MAX_KEY .. ' are allowed'
  end
  local app, module, typ = string.match(key, '^([^:]+):([^:]+):([^:]+):.+$')
  if not app then
    return 'the key is not a timer key: want app:module:type:id with four non-empty parts'
  end
  if #app > MAX_PART or #module > MAX_PART or #typ > MAX_PART then
    return 'app, module and type of the key may have at most ' .. MAX_PART .. ' bytes each'
  end
end

-- The length of an argument comes first: a pattern takes Redis 10 ns and more for each byte, of which
-- there may be 512 MB. So does the number of arguments: more than MAX_ARGUMENTS say something twice.
local MAX_WORD, MAX_ARGUMENTS = 16, 32

-- parse_integer reads an integer, or returns nil.
local function parse_integer(s)
  if s and #s <= MAX_WORD and string.find(s, '^-?%d+$') then return tonumber(s) end
end

-- word returns an argument in capitals; nothing for one that is too long for any option, or missing.
local function word(s) return s and #s <= MAX_WORD and string.upper(s) or '' end

-- too_large says that a payload is.
local function too_large(payload)
  return 'the payload has ' .. #payload .. ' bytes, at most ' .. int(MAX_PAYLOAD) .. ' are allowed'
end

-- too_many says that arguments are.
local function too_many(args) return #args .. ' arguments, at most ' .. MAX_ARGUMENTS .. ' are allowed' end

-- read_late reads LATE ms and perhaps DROP, at a place among arguments. It returns the option of
-- the record, and the place behind it; or nil and what is wrong.
local function read_late(args, i)
  local ms = parse_integer(args[i + 1])
  if not ms or ms < 0 or ms > MAX_DELAY then
    return nil, 'LATE wants milliseconds, an integer from 0 (no limit) to ' .. int(MAX_DELAY)
  end
  local drop = word(args[i + 2]) == 'DROP'
  return (drop and ';D=' or ';L=') .. int(math.abs(ms)), i + (drop and 3 or 2)
end

local TRACE_BYTES = 55

-- trace_option returns the option of a record with a W3C traceparent, or nothing of a malformed one.
local function trace_option(text)
  if #text ~= TRACE_BYTES then return '' end
  local version, trace, span = string.match(text, '^(%x%x)%-(%x+)%-(%x+)%-%x%x$')
  if not version or #trace ~= 32 or #span ~= 16 or version == 'ff' or string.find(text, '%u')
    or not string.find(trace, '[^0]') or not string.find(span, '[^0]') then return '' end
  return ';T=' .. text
end

-- make_way is called before a timer is set in place of what is pending of its key: a timer that is
-- due already is owed. It returns false, and has done nothing, if exists, NX or XX or nil, says no;
-- else true, and whether the key may have a contested timer.
local function make_way(key, exists)
  local scores = redis.call('ZMSCORE', due_key, key, ':?:' .. key)
  local was = tonumber(scores[1] or nil)
  if was or exists then
    local at = redis.call('PEXPIRETIME', key)
    local live = at == -1 or at > now
    if at == -2 and was and was > now then -- evicted, or deleted and we have not heard
      live = may_be_absent(redis.call('HGET', data_key, key) or ':')
    end
    if exists and not live then
      local _, state = first_unclaimed(key)
      live = was ~= nil and was <= now or state == 'held' or state == 'owed'
        or redis.call('ZSCORE', prefix .. 'repeat', key) and (not was or was <= now)
    end
    if exists == 'NX' and live or exists == 'XX' and not live then return false end

    if was and was <= now then
      if differs(at, was) then contest(key, was, 0, 0) else owe(key, was) end
    end
  end
  -- The older timer may have become contested just now.
  return true, scores[2] or was and was <= now
end

-- present returns when an instant that has passed is due: now; or in the next ms, if another timer of
-- the key may have the id of a firing that is due now.
local function present(key) return (pending(key) == now or age(key) == 0) and now + 1 or now end

--[[ timer_set KEY  PAYLOAD (PX ms | EX s | PXAT unix-ms | EXAT unix-s) [NX | XX] [ATTEMPT n]
[LATE ms, then optionally DROP] [TRACE traceparent]
Sets a timer: writes the trigger key and the index in one step. A timer of the same
key that was due already is owed and fires too; one that was pending is replaced. An
instant that has passed is due at once.
Returns the due time in unix ms, or nil if NX found a timer or a key, or XX found
none. An error changes nothing.
If its reply is lost: to call it again replaces the timer by one that is due later, or
at the same time with PXAT or EXAT; if the first had become due, both fire. ]]
local function timer_set(keys, args)
  local key, payload = keys[1], args[1]
  if #keys ~= 1 then return fault('timer_set wants one key, got ' .. #keys) end
  local wrong = check_key(key)
  if wrong then return fault(wrong) end
  if #args < 3 then return fault('timer_set wants: payload, then PX ms, EX s, PXAT unix-ms or EXAT unix-s') end
  if #args > MAX_ARGUMENTS then return fault(too_many(args)) end
  if #payload > MAX_PAYLOAD then return fault(too_large(payload)) end
  local refusal = open_partition_of(key)
  if refusal then return refusal end

  local due, when, exists, attempt, late, trace
  local i = 2
  while i <= #args do
    local option = word(args[i])
    if option == 'NX' or option == 'XX' then
      if exists then return fault('NX or XX can be given once') end
      exists = option
      i = i + 1
    elseif option == 'ATTEMPT' then
      attempt = parse_integer(args[i + 1])
      if not attempt or attempt < 1 or attempt > MAX_ATTEMPT then
        return fault('ATTEMPT wants an integer from 1 to ' .. int(MAX_ATTEMPT))
      end
      i = i + 2
    elseif option == 'LATE' then
      if late then return fault('LATE can be given once') end
      local next_or_wrong
      late, next_or_wrong = read_late(args, i)
      if not late then return fault(next_or_wrong) end
      i = next_or_wrong
    elseif option == 'TRACE' then
      if trace then return fault('TRACE can be given once') end
      if not args[i + 1] then return fault('TRACE wants a traceparent') end
      trace = trace_option(args[i + 1])
      i = i + 2
    elseif option == 'PX' or option == 'EX' or option == 'PXAT' or option == 'EXAT' then
      if when then return fault('PX, EX, PXAT or EXAT can be given once') end
      when = parse_integer(args[i + 1])
      if not when then return fault(option .. ' wants an integer') end
      if option == 'EX' or option == 'EXAT' then when = when * 1000 end
      due = when
      if option == 'PX' or option == 'EX' then
        if when <= 0 then return fault('the delay must be greater than 0') end
        due = now + when
      end
      i = i + 2
    else
      return fault('unknown option: want PX, EX, PXAT, EXAT, NX, XX, ATTEMPT, LATE or TRACE; DROP comes after LATE ms')
    end
  end
  if not due then return fault('no time given: want PX ms, EX s, PXAT unix-ms or EXAT unix-s') end
  if due <= now then due = present(key) end
  if due - now > MAX_DELAY then return fault('the delay is over 10 years') end

  local go_on, contested = make_way(key, exists)
  if not go_on then return false end
  end_repetition(key)
  announce_app(key)
  note_size(payload)
  local due_text = int(due)
  redis.call('SET', key, mark(key), 'PXAT', due_text)
  redis.call('ZADD', due_key, due_text, key)
  redis.call('HSET', data_key, key, (attempt and int(attempt) or '') .. (late or '') .. (trace or '') .. ':' .. payload)
  announce_set(key, due, due_text, contested)
  return due
end

-- open_one_key returns the key of a function that takes nothing else, and opens its
-- index; or an error reply behind it.
local function open_one_key(name, keys, args)
  if #keys ~= 1 then return nil, fault(name .. ' wants one key, got ' .. #keys) end
  if #args > 0 then return nil, fault(name .. ' takes no arguments') end
  local wrong = check_key(keys[1])
  if wrong then return nil, fault(wrong) end
  return keys[1], open_partition_of(keys[1])
end

-- take_contested_by is take_contested for a timer that was due within some time.
local function take_contested_by(earliest, latest, key, name_prefix)
  local due = read_contested(key, name_prefix)
  if due and due >= earliest and due <= latest then return take_contested(key, name_prefix) end
end

-- take_beside takes what waits beside a key's own timer and is due within some time.
-- It returns how many, and whether one of them was set aside.
local function take_beside(earliest, latest, key)
  local taken, aside = 0, false
  local function is_meant(text)
    local due = tonumber(text or 0)
    return due >= earliest and due <= latest
  end
  for _, member in ipairs(members_beside(key, 0, MAX_BESIDE)) do
    if is_meant(string.match(member, '^:s?(%d+)')) then
      forget_beside(member, key)
      taken, aside = taken + 1, aside or string.sub(member, 2, 2) == 's'
    end
  end
  return taken, aside
end

--[[ timer_cancel KEY [UNTIL unix-ms, then optionally FROM unix-ms]
Cancels all timers of a key that nobody has claimed: pending, held, owed, and retries. It
ends its repetition, also if an occurrence of that is firing, and deletes the trigger key. A
key without a TTL is not a trigger key and stays. With UNTIL it cancels those that are due at
that time or before, and the others stay, with the trigger key: so what was found in a list
is cancelled, and not what has been set or armed since. With FROM it cancels of those only what
is due at that time or later: so of several timers of a key one can be cancelled.
Returns "cancelled"; "fired" if none was cancelled and one is firing, or fired within the
last half minute at least, or became a dead letter instead, or is to and the letter may be
stored; or "unknown". An error says that so many were owed that some
are left: then the call is to be repeated.
If its reply is lost: a second call answers "unknown" for timers that the first one
cancelled. ]]
local function timer_cancel(keys, args)
  local earliest, latest = -math.huge, math.huge
  if #args > 0 then
    latest = word(args[1]) == 'UNTIL' and parse_integer(args[2])
    if #args > 2 then earliest = #args == 4 and word(args[3]) == 'FROM' and parse_integer(args[4]) end
    if not latest or not earliest then return fault('timer_cancel takes no arguments, or UNTIL unix-ms, then optionally FROM unix-ms') end
  end
  local key, refusal = open_one_key('timer_cancel', keys, {})
  if refusal then return refusal end
  local was, at = pending(key), redis.call('PEXPIRETIME', key)
  -- The key is right about its timer where the index has not heard of a change yet. Then the
  -- record stays too: it may have the payload of what the key is now.
  local due = at >= now and at or was or 0
  local stays = due > latest or due < earliest
  if stays then was = nil end
  local serial = not stays and end_repetition(key) or nil
  local to_plan = serial and serial < 0
  local deleted = not stays and at ~= -1 and redis.call('DEL', key) == 1
  -- The expired event of what was set aside may be still to come.
  local beside, aside = take_beside(earliest, latest, key)
  -- A timer that may have run out before the key was set again is cancelled with it. One
  -- that was dismissed makes no cancellation of what is none: it most probably was not.
  local contested = take_contested_by(earliest, latest, key)
  local owed, more, given = cancel_owed(key, earliest, latest)
  -- In the very ms of its due time a claimed timer's key is still there.
  if was or contested or beside > 0 or owed > 0 or to_plan or deleted and (at > now or not age(key)) then
    if not stays then forget(key) end
    local dismissed = take_contested_by(earliest, latest, key, ':d:')
    if contested or dismissed or aside or was and (not deleted or was <= now) then
      redis.call('ZADD', fired_key, now, ':c:' .. key)
    end
    if age(key) then redis.call('ZADD', fired_key, now, ':u:' .. key) end
    if more then return redis.error_reply('AGAIN timerd has cancelled ' .. owed .. ' owed timers of this key, and there are more: call again') end
    count_call('timer_cancel')
    return 'cancelled'
  end
  local fired, cancelled = age(key), age(':u:' .. key)
  if given or serial or fired and not (cancelled and cancelled <= fired) then return 'fired' end
  return 'unknown'
end

-- An attempt is looked for among MAX_VALUES values, about: to decode so many takes Redis a ms.
local MAX_VALUES = 4000

-- has_many tells whether a payload may have more values. Each begins the payload, or comes after one
-- of three characters, which cost next to nothing to find.
local function has_many(payload)
  local n = 0
  for _, character in ipairs({ ',', '[', '{' }) do
    local at = string.find(payload, character, 1, true)
    while at do
      n = n + 1
      if n > MAX_VALUES then return true end
      at = string.find(payload, character, at + 1, true)
    end
  end
  return false
end

-- payload_attempt returns the attempt that a payload states, or 1; that of one with too many values is
-- known only when it fires.
local function payload_attempt(payload)
  if may_state_attempt(payload) and not has_many(payload) then
    local ok, object = pcall(cjson.decode, payload)
    local n = ok and type(object) == 'table' and object.attempt
    if type(n) == 'number' and n >= 1 and n <= MAX_ATTEMPT and n == math.floor(n) then return n end
  end
  return 1
end

-- firing_of returns of a key's firing that is not settled when it was due, its record and
-- its state, or nil. If too many are firing to find it, one that fired lately counts.
local function firing_of(key)
  local ref, state = first_unclaimed(key)
  if ref and string.find(ref, '^%d+:0:') then state = 'pending' end -- it is to be planned
  if not ref then
    local fired, all = tonumber(redis.call('ZSCORE', fired_key, key) or nil), nil
    if not fired then return nil end
    ref, all = claimed_firing(key)
    state = 'firing'
    if not ref then
      if all then return nil end
      return fired, 'm:', state
    end
  end
  return tonumber(string.match(ref, '^%d+')), redis.call('HGET', firingdata_key, ref) or 'm:', state
end

-- current_record returns the record that a live trigger key stands for, with what the schedule
-- says of its repetition; or nil, as record_of does.
local function current_record(key)
  local record = record_of(key, MAX_PAYLOAD)
  local was = record and redis.call('HGET', data_key, key)
  return was and is_repeating(was) and with_value(was, record) or record
end

--[[ timer_get KEY
Reads a timer: of several of a key the pending one, or a retry that is left beside it, else
one that is held, else one that is owed, else one that is firing. It changes nothing.
Returns nil if there is none, or {"due", ms, "attempt", n, "payload", bytes, "state",
"pending", "held", "owed" or "firing"}, and "late", ms if the timer has a limit of its own,
"traceparent", text if it has one of its own, and "repeat", text, "occurrence", n if it repeats; the payload is nil if there is none. Of one
that is firing only the state is certain. ]]
local function timer_get(keys, args)
  local key, refusal = open_one_key('timer_get', keys, args)
  if refusal then return refusal end
  local due, at = pending(key), redis.call('PEXPIRETIME', key)
  local state, record = 'pending', nil
  if at == -1 then
    due = nil
  elseif at > now then
    due, record = at, current_record(key)
  elseif due and due <= now then
    state = holding()(key, due) and 'held' or 'owed'
    if state == 'owed' and select(2, first_unclaimed(key)) == 'held' then due = nil end
  end
  local member, beside_due, beside_state
  if not due or state == 'owed' then member, beside_due, beside_state = first_beside(key) end
  if member and (not due or beside_state == 'pending') then
    due, record, state = beside_due, redis.call('HGET', data_key, member) or 'm:', beside_state
    if state == 'owed' and holding()(key, due) then state = 'held' end
  elseif due then
    record = record or redis.call('HGET', data_key, key) or 'm:'
  else
    due, record, state = firing_of(key)
    if not due then return false end
  end
  local colon = string.find(record, ':', 1, true) -- a pattern that took in the payload would cost 15 ns a byte
  local attempt, flag, options = string.match(string.sub(record, 1, colon - 1), '^(%d*)(%a*)(.*)$')
  local payload = not string.find(flag, '[ml]') and string.sub(record, colon + 1) or nil
  local timer = {
    'due', due, 'attempt', tonumber(attempt) or payload_attempt(payload or ''),
    'payload', payload or false, 'state', state,
  }
  local late = tonumber(string.match(options, ';[LD]=(%d+)') or 0)
  if late > 0 then timer[#timer + 1], timer[#timer + 2] = 'late', late end
  local trace = string.match(options, ';T=([^;]*)')
  if trace then timer[#timer + 1], timer[#timer + 2] = 'traceparent', trace end
  local occurrence, text = string.match(options, ';N=(%d+),([^;]*)')
  if text then
    local n = #timer
    timer[n + 1], timer[n + 2], timer[n + 3], timer[n + 4] = 'repeat', text, 'occurrence', tonumber(occurrence)
  end
  return timer
end

redis.register_function { function_name = 'timer_set', callback = timer_set, description = LIMIT, flags = SET_FLAGS }
redis.register_function { function_name = 'timer_cancel', callback = timer_cancel, flags = { 'allow-oom' } }
redis.register_function { function_name = 'timer_get', callback = timer_get, flags = { 'no-writes' } }
