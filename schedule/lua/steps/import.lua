#!lua
--[[ import sets timers as timerd export has read them elsewhere: with their own due times, past or not, attempts,
origins and repetitions, so that they fire the same events. A timer that is there already, by its key, due time and
attempt, is left alone; so is a key that has a timer or a value of its own, unless the timer is due or waits beside
another.
KEYS    1  the partition's prefix
ARGV       for each timer
        1  its key
        2  when it is due
        3  own: the key's own timer, or a firing once it is due; beside: a retry that waits beside a
           newer timer; plan: a repetition whose first occurrence is to be found
        4  its attempt, flags and options, as in a record
        5  payload
        6  the serial of its repetition, or 0
Returns for each 1; 0, it is there; -1, too many retries wait beside this key's timer; or -2, timerd may not write the
key. Only with 1 anything was changed. An error reply for want of a right: nothing was.
If its reply is lost: again it returns 0, also of one that has fired within REMEMBER. ]]

-- add_own sets a key's own timer. The user's key comes first: if timerd may not write it, nothing has happened.
local function add_own(key, due, record)
  if not ttl.try_set(key, due) then return -2 end
  index.put(key, int(due), entry.renewed(record), account.SET)
  wake.if_first(key, due)
  return 1
end

-- add_plan sets a repetition that is to be planned.
local function add_plan(key, serial, record)
  repetition.plan(key, serial, record, account.SET)
  wake.at(0)
  return 1
end

-- add_owed adds a due timer, owed, and reserves its id, also against importing it again.
local function add_owed(key, due, record)
  firings.add(key, due, record, 0, account.SET)
  redis.call('ZADD', run.fired, int(clock.real() + clock.REMEMBER), ':i:' .. int(due) .. ':' .. key)
  wake.at(0)
  return 1
end

-- add sets a missing timer, and returns its place in the reply. was is the due time of the key's own timer, or nil.
local function add(key, due, place, record, attempt, serial, was)
  if due <= clock.due() and place ~= 'plan' then return add_owed(key, due, record) end
  if place == 'beside' then
    if not beside.add(key, due, attempt, record, account.SET) then return -1 end
    wake.if_first(':' .. int(due) .. '.' .. attempt .. ':' .. key, due)
    return 1
  end
  local exists = redis.pcall('EXISTS', key)
  if type(exists) == 'table' then return -2 end
  if exists == 1 or was then return 0 end
  if place == 'plan' then return add_plan(key, serial, record) end
  return add_own(key, due, record)
end

function steps.import(KEYS, ARGV)
  index.open(KEYS[1])
  local refusal = rights.missing_all(rights.OF.import)
  if refusal then return refusal end
  local out, known = {}, {}
  for i = 1, #ARGV, 6 do
    local key, due, place, header, serial = ARGV[i], tonumber(ARGV[i + 1]), ARGV[i + 2], ARGV[i + 3] .. ':',
      tonumber(ARGV[i + 5])
    local attempt, was, result = entry.attempt(header), index.pending(key), 0
    if not (was == due or serial > 0 and repetition.serial_of(key) or ids.is_taken(key, due, attempt)) then
      result = add(key, due, place, header .. ARGV[i + 4], attempt, serial, was)
    end
    if result == 1 then
      if serial > 0 and place ~= 'plan' then redis.call('ZADD', run.prefix .. 'repeat', int(serial), key) end
      local app = apps.of(key)
      if not known[app] then apps.announce(apps.unknown(app)) end
      known[app] = true
    end
    out[#out + 1] = result
  end
  return out
end
