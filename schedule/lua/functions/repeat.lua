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

-- The options of timer_repeat that are one number, with its bounds and what it counts.
local NUMBERS = {
  EVERY = { MIN_INTERVAL, arguments.MAX_DELAY, 'milliseconds, an integer' },
  FROM = { 0, LATEST, 'unix-ms, an integer' },
  UNTIL = { 0, LATEST, 'unix-ms, an integer' },
  TIMES = { 1, MAX_TIMES, 'an integer' },
  CATCHUP = { 0, arguments.MAX_DELAY, 'milliseconds, an integer' },
}

-- read_repetition reads the options of timer_repeat. It returns them by their names, or nil and
-- what is wrong.
local function read_repetition(args)
  local given, i = {}, 2
  while i <= #args do
    local option = arguments.word(args[i])
    local bounds = NUMBERS[option]
    if option == 'NX' or option == 'XX' then
      if given.exists then return nil, 'NX or XX can be given once' end
      given.exists = option
      i = i + 1
    elseif given[option] then
      return nil, option .. ' can be given once'
    elseif bounds then
      local n = arguments.parse_integer(args[i + 1])
      if not n or n < bounds[1] or n > bounds[2] then
        return nil, option .. ' wants ' .. bounds[3] .. ' from ' .. int(bounds[1]) .. ' to ' .. int(bounds[2])
      end
      given[option] = math.abs(n) -- without -0
      i = i + 2
    elseif option == 'LATE' then
      local late, next_or_wrong = arguments.read_late(args, i)
      if not late then return nil, next_or_wrong end
      given.LATE, i = late, next_or_wrong
    elseif option == 'CRON' or option == 'TZ' then
      if not args[i + 1] then return nil, option .. (option == 'TZ' and ' wants a zone' or ' wants an expression') end
      given[option] = args[i + 1]
      i = i + 2
    else
      return nil, 'unknown option: want EVERY, CRON, TZ, FROM, UNTIL, TIMES, CATCHUP, LATE, NX or XX; DROP comes after LATE ms'
    end
  end
  if not given.EVERY == not given.CRON then return nil, 'want either EVERY ms or CRON expression' end
  if given.TZ and not given.CRON then return nil, 'TZ is for CRON alone' end
  return given
end

-- text_of returns a repetition as its events say it, or nil and what is wrong.
local function text_of(given)
  if given.EVERY then return 'every ' .. duration_text(given.EVERY) end
  local expression, wrong = cron.parse(given.CRON)
  if not expression then return nil, wrong end
  local zone = (given.TZ or '') ~= '' and given.TZ or 'UTC'
  wrong = cron.check_zone(zone)
  if wrong then return nil, wrong end
  return 'cron ' .. expression .. ' ' .. zone
end

-- check_times returns what is wrong with when a repetition begins and ends, or nil. first is
-- its first occurrence, or a time before it.
local function check_times(given, first)
  if (given.FROM or 0) - run.now > arguments.MAX_DELAY then return 'FROM is over 10 years ahead' end
  if first - run.now > arguments.MAX_DELAY then return 'the first occurrence is over 10 years ahead' end
  if given.UNTIL and given.UNTIL < first then return 'UNTIL is before the first occurrence' end
end

--[[ timer_repeat KEY  PAYLOAD (EVERY ms | CRON expression [TZ zone]) [FROM unix-ms]
[UNTIL unix-ms] [TIMES n] [CATCHUP ms] [LATE ms, then optionally DROP] [NX | XX]
Sets a timer that repeats: writes the trigger key and the index in one step, as timer_set
does, and so replaces what is pending of the key. Returns the first due time in unix ms; for
CRON "planned", as a timerd computes it; or nil if NX found a timer, a repetition or a key,
or XX found none. An error changes nothing.
If its reply is lost: to call it again replaces the repetition by the same one, which counts
from 1 again. Without FROM, the grid of EVERY begins anew. ]]
local function timer_repeat(keys, args)
  local key, payload = keys[1], args[1]
  if #keys ~= 1 then return arguments.fault('timer_repeat wants one key, got ' .. #keys) end
  local wrong, app = arguments.check_key(key)
  if wrong then return arguments.fault(wrong) end
  if #args < 3 then return arguments.fault('timer_repeat wants: payload, then EVERY ms or CRON expression') end
  if #args > arguments.MAX_ARGUMENTS then return arguments.fault(arguments.too_many(args)) end
  if #payload > MAX_PAYLOAD then return arguments.fault(arguments.too_large(payload)) end
  local refusal = partition.open(key)
  if refusal then return refusal end

  local given, text
  given, wrong = read_repetition(args)
  if not given then return arguments.fault(wrong) end
  text, wrong = text_of(given)
  if not text then return arguments.fault(wrong) end
  local from, due = given.FROM or given.EVERY and run.now or 0, run.now
  if given.EVERY then
    due = from > run.now and from or from + (math.floor((run.now - from) / given.EVERY) + 1) * given.EVERY
  end
  wrong = check_times(given, given.EVERY and due or math.max(run.now, from))
  if wrong then return arguments.fault(wrong) end

  local go_on, contested, was, at = replace.find_way(key, given.exists)
  if not go_on then return false end
  local older, doubted = repetition.serial_of(key), nil
  app, doubted = apps.unknown(app)
  refusal = replace.may_replace(key, was, older, app) or rights.missing_all(given.CRON and rights.OF.plan or rights.OF.repeats)
    or given.CRON and rights.missing('DEL', key, 'the key')
  if refusal then return refusal end
  local t = redis.call('TIME')
  local serial = math.max(tonumber(t[1]) * 1000000 + tonumber(t[2]), math.abs(older or 0) + 1)
  local numbers = string.format('%.0f,%.0f,%.0f,%.0f,%.0f,%.0f', serial, due, from, given.UNTIL or 0, given.TIMES or 0, given.CATCHUP or 0)
  local record = 'p' .. (given.LATE or '') .. ';R=' .. numbers .. ';N=1,' .. text .. ':' .. payload
  replace.make_way(key, was, at, older)
  apps.announce(app, doubted)
  index.note_size(record)
  if given.EVERY then
    local due_text = int(due)
    redis.call('HSET', run.data, key, record)
    redis.call('ZADD', run.due, due_text, key)
    redis.call('SET', key, trigger.mark(key), 'PXAT', due_text)
    redis.call('ZADD', run.prefix .. 'repeat', int(serial), key)
    partition.announce_set(key, due, due_text, contested)
    return due
  end
  local ref = repetition.plan_ref(key, serial)
  redis.call('DEL', key)
  index.forget(key)
  redis.call('HSET', run.firingdata, ref, record)
  redis.call('ZADD', run.firing, '0', ref)
  owing.list(run.prefix, { ref })
  redis.call('ZADD', run.prefix .. 'repeat', int(-serial), key)
  partition.announce_owed()
  calls.count('timer_set')
  return 'planned'
end

redis.register_function { function_name = 'timer_repeat', callback = timer_repeat, flags = partition.SET_FLAGS }
