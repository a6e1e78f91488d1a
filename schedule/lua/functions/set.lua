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
  if #keys ~= 1 then return arguments.fault('timer_set wants one key, got ' .. #keys) end
  local wrong, app = arguments.check_key(key)
  if wrong then return arguments.fault(wrong) end
  if #args < 3 then return arguments.fault('timer_set wants: payload, then PX ms, EX s, PXAT unix-ms or EXAT unix-s') end
  if #args > arguments.MAX_ARGUMENTS then return arguments.fault(arguments.too_many(args)) end
  if #payload > MAX_PAYLOAD then return arguments.fault(arguments.too_large(payload)) end
  local refusal = partition.open(key)
  if refusal then return refusal end

  local due, when, exists, attempt, late, trace
  local i = 2
  while i <= #args do
    local option = arguments.word(args[i])
    if option == 'NX' or option == 'XX' then
      if exists then return arguments.fault('NX or XX can be given once') end
      exists = option
      i = i + 1
    elseif option == 'ATTEMPT' then
      attempt = arguments.parse_integer(args[i + 1])
      if not attempt or attempt < 1 or attempt > arguments.MAX_ATTEMPT then
        return arguments.fault('ATTEMPT wants an integer from 1 to ' .. int(arguments.MAX_ATTEMPT))
      end
      i = i + 2
    elseif option == 'LATE' then
      if late then return arguments.fault('LATE can be given once') end
      local next_or_wrong
      late, next_or_wrong = arguments.read_late(args, i)
      if not late then return arguments.fault(next_or_wrong) end
      i = next_or_wrong
    elseif option == 'TRACE' then
      if trace then return arguments.fault('TRACE can be given once') end
      if not args[i + 1] then return arguments.fault('TRACE wants a traceparent') end
      trace = arguments.trace_option(args[i + 1])
      i = i + 2
    elseif option == 'PX' or option == 'EX' or option == 'PXAT' or option == 'EXAT' then
      if when then return arguments.fault('PX, EX, PXAT or EXAT can be given once') end
      when = arguments.parse_integer(args[i + 1])
      if not when then return arguments.fault(option .. ' wants an integer') end
      if option == 'EX' or option == 'EXAT' then when = when * 1000 end
      due = when
      if option == 'PX' or option == 'EX' then
        if when <= 0 then return arguments.fault('the delay must be greater than 0') end
        due = run.now + when
      end
      i = i + 2
    else
      return arguments.fault('unknown option: want PX, EX, PXAT, EXAT, NX, XX, ATTEMPT, LATE or TRACE; DROP comes after LATE ms')
    end
  end
  if not due then return arguments.fault('no time given: want PX ms, EX s, PXAT unix-ms or EXAT unix-s') end
  if due <= run.now then due = replace.present(key) end
  if due - run.now > arguments.MAX_DELAY then return arguments.fault('the delay is over 10 years') end

  local go_on, contested, was, at = replace.find_way(key, exists)
  if not go_on then return false end
  local serial, doubted = repetition.serial_of(key), nil
  app, doubted = apps.unknown(app)
  refusal = replace.may_replace(key, was, serial, app)
  if refusal then return refusal end
  replace.make_way(key, was, at, serial)
  apps.announce(app, doubted)
  index.note_size(payload)
  local due_text = int(due)
  redis.call('HSET', run.data, key, (attempt and int(attempt) or '') .. (late or '') .. (trace or '') .. ':' .. payload)
  redis.call('ZADD', run.due, due_text, key)
  redis.call('SET', key, trigger.mark(key), 'PXAT', due_text)
  partition.announce_set(key, due, due_text, contested)
  return due
end

redis.register_function { function_name = 'timer_set', callback = timer_set, description = LIMIT, flags = partition.SET_FLAGS }
