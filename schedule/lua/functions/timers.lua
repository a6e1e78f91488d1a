-- include: limits clock index rights common fire payload contest announce states partition
-- The function library: what clients call. A function gets the timer's key alone, and
-- finds the partition by it. In a cluster it answers TRYAGAIN, and has changed nothing,
-- while the slot of the key moves to another server.

local MAX_KEY, MAX_PART, MAX_DELAY, MAX_ATTEMPT = 1024, 128, 315360000000, 2147483647

local function fault(text) return redis.error_reply('ERR timerd: ' .. text) end

-- check_key returns what is wrong with a timer key, or nil and its app.
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
  return nil, app
end

-- The length of an argument comes first: a pattern takes Redis 10 ns and more for each byte, of which
-- there may be 512 MB. So does the number of arguments: more than MAX_ARGUMENTS say something twice.
local MAX_WORD, MAX_ARGUMENTS = 16, 32

-- MAX_INTEGER is the length of an integer of 64 bits. What is out of range is refused as that.
local MAX_INTEGER = 20

-- parse_integer reads an integer, or returns nil.
local function parse_integer(s)
  if s and #s <= MAX_INTEGER and string.find(s, '^-?%d+$') then return tonumber(s) end
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

-- find_way looks at what a new timer of a key replaces. It returns false if exists, NX or XX or nil, says
-- no; else true, whether the key may have a contested timer, and of a pending timer that is due already when
-- it was due and when the key runs out.
local function find_way(key, exists)
  local scores = redis.call('ZMSCORE', due_key, key, ':?:' .. key)
  local was = tonumber(scores[1] or nil)
  if was or exists then
    local at = expires_at(key)
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
    if was and was <= now then return true, true, was, at end -- it may become contested
  end
  return true, scores[2]
end

-- may_replace returns an error reply if the caller may not set a timer in place of the older one, else nil. was
-- and serial are as make_way gets them, app is unknown_app's. If there is nothing of these, it does not ask for
-- HSET, which then is the first write.
local function may_replace(key, was, serial, app)
  local may = redis.acl_check_cmd
  if not (was or serial or app) and may('SET', key, '') and may('ZADD', due_key, '0', '') then return nil end
  return missing_right('SET', key, 'the key') or missing_right('ZADD', due_key, due_key)
    or app and missing_rights(RIGHTS.know_app) or was and missing_rights(RIGHTS.owing)
    or serial and missing_rights(RIGHTS.ending)
end

-- make_way is called before a timer is set in place of what is pending of its key: it ends a repetition, if it
-- has a serial, and a timer that is due already is owed. was and at are those of find_way.
local function make_way(key, was, at, serial)
  if was and differs(at, was) then contest(key, was, 0, 0) elseif was then owe(key, was) end
  end_repetition(key, serial)
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
  local wrong, app = check_key(key)
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

  local go_on, contested, was, at = find_way(key, exists)
  if not go_on then return false end
  local serial, doubted = serial_of(key), nil
  app, doubted = unknown_app(app)
  refusal = may_replace(key, was, serial, app)
  if refusal then return refusal end
  make_way(key, was, at, serial)
  announce_app(app, doubted)
  note_size(payload)
  local due_text = int(due)
  redis.call('HSET', data_key, key, (attempt and int(attempt) or '') .. (late or '') .. (trace or '') .. ':' .. payload)
  redis.call('ZADD', due_key, due_text, key)
  redis.call('SET', key, mark(key), 'PXAT', due_text)
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

redis.register_function { function_name = 'timer_set', callback = timer_set, description = LIMIT, flags = SET_FLAGS }
