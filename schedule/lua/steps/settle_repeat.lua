#!lua flags=allow-oom
--[[ settle_repeat settles occurrences of repetitions, or those that are to be planned, and arms
the next ones in the same step. An occurrence whose repetition has ended or was replaced since,
or whose successor is armed, is settled alone. What a client has set under the key since
the occurrence was due is not overwritten: with a TTL it is the next occurrence, and without
one it ends the repetition.
KEYS    1  the partition's prefix
ARGV    for each its ref, when the next occurrence is due, 0 if none follows, -1 if somebody else is
        to find that out, its number, the serial of the firing, and how many occurrences are left
        out before the next one
Returns for each 1 if it was its repetition's, else 0.
If its reply is lost: again it arms nothing, as the firings are gone. If it never ran: they
are claimed and published again once their leases end. ]]

-- A settlement that is so late, in ms, or that comes by a clock that is ahead, may leave something out.
-- The record then has the stretches that have fired (schedule/replan.go): so many at most, and if the
-- latest has gone on for so long, in ms, no others but those that lie ahead of it.
local JUMP, STRETCHES, SURE = 5000, 5, 86400000

-- leave_out returns the options of a record where a new stretch begins at due, after an occurrence.
local function leave_out(options, nominal, due)
  local was = {}
  for n in string.gmatch(string.match(options, ';A=([^;]*)') or '', '%d+') do was[#was + 1] = tonumber(n) end
  local is_sure = not was[2] or nominal - was[2] > SURE
  local all = { int(is_sure and nominal or was[1]), int(due), '0' }
  for i = 2, #was, 2 do
    local ending = was[i + 1] == 0 and nominal + 1 or was[i + 1]
    if #all < 2 * STRETCHES and not (is_sure and ending <= nominal + 1) then
      all[#all + 1], all[#all + 2] = int(was[i]), int(ending)
    end
  end
  return string.gsub(options, ';A=[^;]*', '', 1) .. ';A=' .. table.concat(all, ',')
end

-- next_record returns the record of the next occurrence, after so many that are left out.
local function next_record(record, serial, due, occurrence, skipped)
  local marks, options, colon = string.match(record, '^%d*(%a*)([^:]*)()') -- not the payload, which costs 15 ns a byte
  local nominal = string.match(options, ';R=%d+,(%d+)')
  options = string.gsub(options, ';R=%d+,%d+', ';R=' .. int(serial) .. ',' .. int(tonumber(due)), 1)
  options = string.gsub(options, ';N=%d+', ';N=' .. occurrence, 1)
  if skipped > 0 and run.now - tonumber(nominal) > JUMP then options = leave_out(options, tonumber(nominal), tonumber(due)) end
  return 'p' .. string.gsub(marks, '[^ml]', '') .. options .. string.sub(record, colon)
end

-- free_time returns when an occurrence can be due so that no firing of its key has its id: a ms
-- later where that is enough. The steps double, so they stay few whatever has fired.
local function free_time(key, due)
  local step = 1
  while redis.call('ZSCORE', run.fired, ':i:' .. int(due) .. ':' .. key) do due, step = due + step, 2 * step end
  return due
end

-- is_another tells of the firing with a ref that it is not the one that was claimed: a plan has the
-- ref of one that was set and cancelled in the same ms.
local function is_another(record, serial)
  local own = string.match(record, ';R=(%d+)')
  return own ~= nil and own ~= serial
end

function steps.settle_repeat(KEYS, ARGV)
  index.open(KEYS[1])
  local now_us = tonumber(run.time[1]) * 1000000 + tonumber(run.time[2])
  local repeat_key, soonest = run.prefix .. 'repeat', nil

  -- put has an occurrence wait for a time.
  local function put(key, at, record)
    index.note_size(record)
    redis.call('ZADD', run.due, int(at), key)
    redis.call('HSET', run.data, key, record)
    soonest = math.min(soonest or at, at)
  end

  -- arm arms the next occurrence. It returns whether there is one.
  local function arm(key, due, record)
    local was, at = index.pending(key), ttl.try(key)
    if was then
      put(key, was, entry.with_value(record, redis.call('HGET', run.data, key) or 'm:'))
    elseif at == -1 then
      return false
    elseif at and at >= 0 then
      put(key, at, entry.with_value(record, trigger.record_of(key, MAX_PAYLOAD) or record))
    else
      due = free_time(key, due)
      -- The user's key comes first. Where there is none nobody deleted it, and no expired event of
      -- it will come.
      if due <= run.now or not at or redis.pcall('SET', key, trigger.mark(key), 'PXAT', int(due)).err then record = entry.add_flag(record, 'u') end
      put(key, due, record)
    end
    return true
  end

  -- plan_again has a timerd that can find the next occurrence.
  local function plan_again(key, serial, record)
    local ref = repetition.plan_ref(key, serial)
    redis.call('HSET', run.firingdata, ref, record)
    redis.call('ZADD', run.firing, '0', ref)
    owing.list(run.prefix, { ref })
    redis.call('ZADD', repeat_key, int(-serial), key)
    soonest = 0
  end

  -- go_on arms what follows a firing, or ends its repetition. It returns 1, or 0 if that is not the
  -- firing's any more.
  local function go_on(ref, record, due, occurrence, skipped)
    local at, key = string.match(ref, '^(%d+):%d*:(.*)$')
    local serial, nominal = string.match(record, ';R=(%d+),(%d+)')
    local current = key and redis.call('ZSCORE', repeat_key, key)
    if not current or math.abs(tonumber(current)) ~= tonumber(serial) then return 0 end
    if at ~= nominal then redis.call('ZADD', run.fired, int(run.now + clock.REMEMBER), ':i:' .. at .. ':' .. key) end
    serial = math.max(tonumber(serial) + 1, now_us)
    if due < 0 then
      plan_again(key, serial, next_record(record, serial, nominal, occurrence, 0))
    elseif due > 0 and arm(key, due, next_record(record, serial, due, occurrence, skipped)) then
      redis.call('ZADD', repeat_key, int(serial), key)
      apps.announce(apps.unknown(apps.of(key)))
    else
      redis.call('ZREM', repeat_key, key)
    end
    return 1
  end

  local refs, done = {}, {}
  for i = 1, #ARGV, 5 do
    local ref = ARGV[i]
    local record = redis.call('HGET', run.firingdata, ref)
    if record and is_another(record, ARGV[i + 3]) then
      done[#done + 1] = 0
    else
      refs[#refs + 1] = ref
      done[#done + 1] = record and go_on(ref, record, tonumber(ARGV[i + 1]), ARGV[i + 2], tonumber(ARGV[i + 4])) or 0
    end
  end
  if #refs == 0 then return done end
  redis.call('ZREM', run.firing, unpack(refs))
  redis.call('ZREM', run.prefix .. 'refused', unpack(refs))
  redis.call('HDEL', run.firingdata, unpack(refs))
  owing.unlist(run.prefix, refs)
  if soonest and soonest <= run.now + WAKE_WITHIN and (soonest == 0 or index.head() >= soonest) then wake.at(soonest) end
  return done
end
