#!lua flags=allow-oom
--[[ settle_repeat settles occurrences of repetitions, or plans, and arms the next ones in the same step. An occurrence
whose repetition has ended or was replaced since, or whose successor is armed, is settled alone. A key that a client has
set since the occurrence was due is not overwritten: with a TTL it is the next occurrence, and without one it ends the
repetition.
KEYS    1  the partition's prefix
ARGV    for each its ref, the due time of the next occurrence, 0 if none follows, -1 if somebody else is
        to find that out, its number, the serial of the firing, the number of occurrences left
        out before the next one, and the kind of its end in the account
Returns for each 1 if it was its repetition's, else 0.
If its reply is lost: again it arms nothing, as the firings are gone. If it never ran: they are claimed and published
again once their leases end. ]]

-- A settlement that is late by JUMP ms, perhaps by a clock that is ahead, may omit occurrences. The record then has
-- STRETCHES at most of the stretches that have fired (schedule/occurrence.go). Once the latest has gone on for SURE ms,
-- it has only those ahead of that.
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
  options = string.gsub(string.gsub(options, ';G=[^;]*', '', 1), ';N=%d+', ';N=' .. occurrence, 1)
  if skipped > 0 and clock.due() - tonumber(nominal) > JUMP then
    options = leave_out(options, tonumber(nominal), tonumber(due))
  end
  return 'p' .. string.gsub(marks, '[^ml]', '') .. options .. string.sub(record, colon)
end

-- The kind of a plan that has become an occurrence.
local PLANNED = 'planned'

-- free_time returns a due time at which no firing of the key has the occurrence's id: a ms later if that is enough. The
-- steps double, so they stay few.
local function free_time(key, due)
  local step = 1
  while redis.call('ZSCORE', run.fired, ':i:' .. int(due) .. ':' .. key) do due, step = due + step, 2 * step end
  return due
end

-- is_another reports whether the firing with a ref is not the claimed one: a plan has the ref of one set and cancelled
-- in the same ms.
local function is_another(record, serial)
  local own = string.match(record, ';R=(%d+)')
  return own ~= nil and own ~= serial
end

-- put adds an occurrence due at a time, and returns the time.
local function put(key, at, record, kind)
  index.put(key, int(at), record, kind)
  return at
end

-- arm arms the next occurrence. It returns its due time, or nil if there is none. is_plan says that it comes from a
-- plan, which the account has.
local function arm(key, due, record, is_plan)
  local was, at, kind = index.pending(key), ttl.try(key), not is_plan and account.REPEATED or nil
  if was then -- that timer is the occurrence
    if is_plan then account.note(account.REPLACED, 1) end
    return put(key, was, entry.with_value(record, redis.call('HGET', run.data, key) or 'm:'))
  end
  if at == -1 then return nil end
  if at and at >= 0 then
    ttl.follow(key, at)
    return put(key, at, entry.with_value(record, trigger.record_of(key, MAX_PAYLOAD) or record), kind)
  end
  due = free_time(key, due)
  -- The user's key comes first. Where there is none nobody deleted it, and no expired event of it will come.
  if due <= clock.due() or not at or not ttl.try_set(key, due) then record = entry.add_flag(record, 'u') end
  return put(key, due, record, kind)
end

-- go_on arms the occurrence after a firing, or ends its repetition. It returns 1, or 0 if the repetition has ended or
-- was replaced; and the time of the next claim, or nil.
local function go_on(ref, record, due, occurrence, skipped)
  local at, key = string.match(ref, '^(%d+):%d*:(.*)$')
  local serial, nominal = string.match(record, ';R=(%d+),(%d+)')
  local current = key and redis.call('ZSCORE', run.prefix .. 'repeat', key)
  if not current or math.abs(tonumber(current)) ~= tonumber(serial) then return 0 end
  if at ~= nominal then redis.call('ZADD', run.fired, int(clock.real() + clock.REMEMBER), ':i:' .. at .. ':' .. key) end
  serial = math.max(tonumber(serial) + 1, clock.micros())
  local is_plan = string.find(ref, '^%d+:0:') ~= nil
  if due < 0 then
    repetition.plan(key, serial, next_record(record, serial, nominal, occurrence, 0),
      not is_plan and account.REPEATED or nil)
    return 1, 0
  end
  local armed = due > 0 and arm(key, due, next_record(record, serial, due, occurrence, skipped), is_plan) or nil
  if armed then
    account.note(account.REPEATED, skipped)
    account.note(account.SKIPPED, skipped)
    redis.call('ZADD', run.prefix .. 'repeat', int(serial), key)
    apps.announce(apps.unknown(apps.of(key)))
  else
    redis.call('ZREM', run.prefix .. 'repeat', key)
  end
  return 1, armed
end

-- end_all ends firings, of a list by kind. A plan with an occurrence has become that.
local function end_all(refs_of)
  for kind, refs in pairs(refs_of) do index.end_firings(refs, true, kind ~= PLANNED and kind or nil) end
end

function steps.settle_repeat(KEYS, ARGV)
  index.open(KEYS[1])
  local refs_of, done, ending, soonest = {}, {}, 0, math.huge
  for i = 1, #ARGV, 6 do
    local ref, result, at, kind = ARGV[i], 0, nil, ARGV[i + 5]
    local record = redis.call('HGET', run.firingdata, ref)
    if not (record and is_another(record, ARGV[i + 3])) then
      if record then result, at = go_on(ref, record, tonumber(ARGV[i + 1]), ARGV[i + 2], tonumber(ARGV[i + 4])) end
      if at and string.find(ref, '^%d+:0:') then kind = PLANNED end
      refs_of[kind] = refs_of[kind] or {}
      table.insert(refs_of[kind], ref)
      ending, soonest = ending + 1, math.min(soonest, at or math.huge)
    end
    done[#done + 1] = result
  end
  if ending == 0 then return done end
  end_all(refs_of)
  if soonest <= clock.due() + WAKE_WITHIN and (soonest == 0 or index.head() >= soonest) then wake.at(soonest) end
  return done
end
