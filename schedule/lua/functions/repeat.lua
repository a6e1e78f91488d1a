-- Timers that repeat, in the function library.
local MIN_INTERVAL, MAX_TIMES = 100, 2147483647

-- duration_text writes milliseconds as Go writes a duration: 5m0s.
local function duration_text(ms)
  if ms < 1000 then return int(ms) .. 'ms' end
  local hours, minutes = math.floor(ms / 3600000), math.floor(ms / 60000) % 60
  local text = string.gsub(string.format('%.3f', ms % 60000 / 1000), '%.?0+$', '', 1) .. 's'
  if hours > 0 then return int(hours) .. 'h' .. int(minutes) .. 'm' .. text end
  return minutes > 0 and int(minutes) .. 'm' .. text or text
end

-- number returns the reader of an option that is a number, with its bounds and its unit.
local function number(low, high, counts)
  return function(given, args, i, option)
    if given[option] then return nil, option .. ' can be given once' end
    local n = arguments.parse_integer(args[i + 1])
    if not n or n < low or n > high then
      return nil, option .. ' wants ' .. counts .. ' from ' .. int(low) .. ' to ' .. int(high)
    end
    given[option] = math.abs(n) -- without -0
    return i + 2
  end
end

-- text returns the reader of an option that is a text.
local function text(wants)
  return function(given, args, i, option)
    if given[option] then return nil, option .. ' can be given once' end
    if not args[i + 1] then return nil, option .. ' wants ' .. wants end
    given[option] = args[i + 1]
    return i + 2
  end
end

-- The options of timer_repeat, as arguments.read_options takes them.
local OPTIONS = {
  NX = arguments.read_exists, XX = arguments.read_exists,
  EVERY = number(MIN_INTERVAL, arguments.MAX_DELAY, 'milliseconds, an integer'),
  FROM = number(0, LATEST, 'unix-ms, an integer'),
  UNTIL = number(0, LATEST, 'unix-ms, an integer'),
  TIMES = number(1, MAX_TIMES, 'an integer'),
  CATCHUP = number(0, arguments.MAX_DELAY, 'milliseconds, an integer'),
  CRON = text('an expression'),
  TZ = text('a zone'),
  LATE = function(given, args, i)
    if given.LATE then return nil, 'LATE can be given once' end
    local next_or_wrong
    given.LATE, next_or_wrong = arguments.read_late(args, i)
    if not given.LATE then return nil, next_or_wrong end
    return next_or_wrong
  end,
  UNLESS = arguments.read_guard, IF = arguments.read_guard,
}

local UNKNOWN = 'unknown option: want EVERY, CRON, TZ, FROM, UNTIL, TIMES, CATCHUP, LATE, UNLESS, IF, NX or XX; '
  .. 'DROP comes after LATE ms'

-- read_repetition reads the options of timer_repeat. It returns them by their names, or nil and the fault.
local function read_repetition(args)
  local given, wrong = arguments.read_options(OPTIONS, args, 2, UNKNOWN)
  if not given then return nil, wrong end
  if not given.EVERY == not given.CRON then return nil, 'want either EVERY ms or CRON expression' end
  if given.TZ and not given.CRON then return nil, 'TZ is for CRON alone' end
  return given
end

-- text_of returns a repetition as its events say it, or nil and the fault.
local function text_of(given)
  if given.EVERY then return 'every ' .. duration_text(given.EVERY) end
  local expression, wrong = cron.parse(given.CRON)
  if not expression then return nil, wrong end
  local zone = (given.TZ or '') ~= '' and given.TZ or 'UTC'
  wrong = cron.check_zone(zone)
  if wrong then return nil, wrong end
  return 'cron ' .. expression .. ' ' .. zone
end

-- check_times returns the fault of a repetition's beginning or end, or nil. first is its first occurrence, or a time
-- before it.
local function check_times(given, first)
  if (given.FROM or 0) - clock.due() > arguments.MAX_DELAY then return 'FROM is over 10 years ahead' end
  if first - clock.due() > arguments.MAX_DELAY then return 'the first occurrence is over 10 years ahead' end
  if given.UNTIL and given.UNTIL < first then return 'UNTIL is before the first occurrence' end
end

-- first_time returns the time from which a repetition counts, and its first due time, or an earlier one.
local function first_time(given)
  local now = clock.due()
  local from = given.FROM or given.EVERY and now or 0
  if not given.EVERY then return from, now end
  return from, from > now and from or from + (math.floor((now - from) / given.EVERY) + 1) * given.EVERY
end

-- numbers_of returns the option ;R= of a first occurrence's record.
local function numbers_of(given, serial, due, from)
  local ends, times, catch_up = given.UNTIL or 0, given.TIMES or 0, given.CATCHUP or 0
  return ';R=' .. string.format('%.0f,%.0f,%.0f,%.0f,%.0f,%.0f', serial, due, from, ends, times, catch_up)
end

-- read returns the options of timer_repeat for a key, the repetition as its events say it, and first_time's results; or
-- nil and the fault.
local function read(args, key)
  local given, wrong = read_repetition(args)
  if not given then return nil, wrong end
  wrong = arguments.check_guards(given, key)
  if wrong then return nil, wrong end
  local said
  said, wrong = text_of(given)
  if not said then return nil, wrong end
  local from, due = first_time(given)
  wrong = check_times(given, given.EVERY and due or math.max(due, from))
  if wrong then return nil, wrong end
  return given, said, from, due
end

--[[ timer_repeat KEY  PAYLOAD (EVERY ms | CRON expression [TZ zone]) [FROM unix-ms] [UNTIL unix-ms] [TIMES n] [CATCHUP
ms] [LATE ms, then optionally DROP] [UNLESS key] [IF key] [NX | XX]
Sets a timer that repeats: writes the trigger key and the index in one step, as timer_set does, and so replaces the
key's pending timer. Returns the first due time in unix ms; for CRON "planned", as a timerd computes it; or nil if NX
found a timer, a repetition or a key, or XX found none. An error changes nothing.
If its reply is lost: to call it again replaces the repetition by the same one, which counts from 1 again. Without FROM,
the grid of EVERY begins anew. ]]
local function timer_repeat(keys, args)
  local key, payload = keys[1], args[1]
  local app, refusal = arguments.open_to_set('timer_repeat', 'EVERY ms or CRON expression', keys, args)
  if refusal then return refusal end
  local given, said, from, due = read(args, key)
  if not given then return arguments.fault(said) end

  local go_on, contested, was, at = replace.find_way(key, given.exists)
  if not go_on then return false end
  local older, doubted = repetition.serial_of(key), nil
  app, doubted = apps.unknown(app)
  refusal = replace.may_replace(key, was, older, app)
    or rights.missing_all(given.CRON and rights.OF.plan or rights.OF.repeats)
    or given.CRON and rights.missing('DEL', key, 'the key')
  if refusal then return refusal end
  local serial = math.max(clock.micros(), math.abs(older or 0) + 1)
  local record = 'p' .. (given.LATE or '') .. guards.options(given.UNLESS, given.IF)
    .. numbers_of(given, serial, due, from) .. ';N=1,' .. said .. ':' .. payload
  replace.make_way(key, was, at, older)
  apps.announce(app, doubted)
  if given.EVERY then
    local due_text = int(due)
    index.put(key, due_text, record, account.SET)
    ttl.set(key, due_text)
    redis.call('ZADD', run.prefix .. 'repeat', int(serial), key)
    partition.announce_set(key, due, due_text, contested)
    return due
  end
  redis.call('DEL', key)
  index.forget(key, account.REPLACED)
  repetition.plan(key, serial, record, account.SET)
  partition.announce_owed()
  calls.count('timer_set')
  return 'planned'
end

redis.register_function { function_name = 'timer_repeat', callback = bound(timer_repeat), flags = partition.SET_FLAGS }
