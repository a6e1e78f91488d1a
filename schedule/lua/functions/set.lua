-- read_time reads PX, EX, PXAT or EXAT.
local function read_time(given, args, i, option)
  if given.due then return nil, 'PX, EX, PXAT or EXAT can be given once' end
  local at = arguments.parse_integer(args[i + 1])
  if not at then return nil, option .. ' wants an integer' end
  if option == 'EX' or option == 'EXAT' then at = at * 1000 end
  if option == 'PX' or option == 'EX' then
    if at <= 0 then return nil, 'the delay must be greater than 0' end
    at = clock.due() + at
  end
  given.due = at
  return i + 2
end

-- The options of timer_set, as arguments.read_options takes them.
local OPTIONS = {
  NX = arguments.read_exists, XX = arguments.read_exists,
  PX = read_time, EX = read_time, PXAT = read_time, EXAT = read_time,
  ATTEMPT = function(given, args, i)
    given.attempt = arguments.parse_integer(args[i + 1])
    if not given.attempt or given.attempt < 1 or given.attempt > arguments.MAX_ATTEMPT then
      return nil, 'ATTEMPT wants an integer from 1 to ' .. int(arguments.MAX_ATTEMPT)
    end
    return i + 2
  end,
  LATE = function(given, args, i)
    if given.late then return nil, 'LATE can be given once' end
    local next_or_wrong
    given.late, next_or_wrong = arguments.read_late(args, i)
    if not given.late then return nil, next_or_wrong end
    return next_or_wrong
  end,
  TRACE = function(given, args, i)
    if given.trace then return nil, 'TRACE can be given once' end
    if not args[i + 1] then return nil, 'TRACE wants a traceparent' end
    given.trace = arguments.trace_option(args[i + 1])
    return i + 2
  end,
  UNLESS = arguments.read_guard, IF = arguments.read_guard,
}

local UNKNOWN = 'unknown option: want PX, EX, PXAT, EXAT, NX, XX, ATTEMPT, LATE, TRACE, UNLESS or IF; DROP comes after '
  .. 'LATE ms'

--[[ timer_set KEY  PAYLOAD (PX ms | EX s | PXAT unix-ms | EXAT unix-s) [NX | XX] [ATTEMPT n] [LATE ms, then optionally
DROP] [TRACE traceparent] [UNLESS key] [IF key]
Sets a timer: writes the trigger key and the index in one step. A timer of the same key that was due already is owed and
fires too; one that was pending is replaced. An instant that has passed is due at once.
Returns the due time in unix ms, or nil if NX found a timer or a key, or XX found none. An error changes nothing.
If its reply is lost: to call it again replaces the timer by one that is due later, or at the same time with PXAT or
EXAT; if the first had become due, both fire. ]]
local function timer_set(keys, args)
  local key, payload = keys[1], args[1]
  local app, refusal = arguments.open_to_set('timer_set', 'PX ms, EX s, PXAT unix-ms or EXAT unix-s', keys, args)
  if refusal then return refusal end
  local given, wrong = arguments.read_options(OPTIONS, args, 2, UNKNOWN)
  if not given then return arguments.fault(wrong) end
  local due = given.due
  if not due then return arguments.fault('no time given: want PX ms, EX s, PXAT unix-ms or EXAT unix-s') end
  wrong = arguments.check_guards(given, key)
  if wrong then return arguments.fault(wrong) end
  if due <= clock.due() then due = replace.present(key) end
  if due - clock.due() > arguments.MAX_DELAY then return arguments.fault('the delay is over 10 years') end

  local go_on, contested, was, at = replace.find_way(key, given.exists)
  if not go_on then return false end
  local serial, doubted = repetition.serial_of(key), nil
  app, doubted = apps.unknown(app)
  refusal = replace.may_replace(key, was, serial, app)
  if refusal then return refusal end
  replace.make_way(key, was, at, serial)
  apps.announce(app, doubted)
  local due_text = int(due)
  local header = (given.attempt and int(given.attempt) or '') .. (given.late or '') .. (given.trace or '')
    .. guards.options(given.UNLESS, given.IF)
  index.put(key, due_text, header .. ':' .. payload, account.SET)
  ttl.set(key, due_text)
  partition.announce_set(key, due, due_text, contested)
  return due
end

redis.register_function { function_name = 'timer_set', callback = bound(timer_set), description = LIMIT,
  flags = partition.SET_FLAGS }
