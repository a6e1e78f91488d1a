-- An attempt is looked for among MAX_VALUES values, about: to decode so many takes Redis a ms.
local MAX_VALUES = 4000

-- has_many reports whether a payload may have more values. Each begins the payload, or comes after one of three
-- characters, which cost next to nothing to find.
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

-- payload_attempt returns the attempt that a payload states, or 1, also for too many values: it is known when it fires.
local function payload_attempt(payload)
  if entry.may_state_attempt(payload) and not has_many(payload) then
    local ok, object = pcall(cjson.decode, payload)
    local n = ok and type(object) == 'table' and object.attempt
    if type(n) == 'number' and n >= 1 and n <= arguments.MAX_ATTEMPT and n == math.floor(n) then return n end
  end
  return 1
end

-- firing_of returns the due time, record and state of an unsettled firing of a key, or nil. If too many are firing to
-- find it, one that fired lately counts.
local function firing_of(key)
  local ref, state = states.first_unclaimed(key)
  if ref and string.find(ref, '^%d+:0:') then state = 'pending' end -- it is to be planned
  if not ref then
    local fired, all = tonumber(redis.call('ZSCORE', run.fired, key) or nil), nil
    if not fired then return nil end
    ref, all = firings.claimed(key)
    state = 'firing'
    if not ref then
      if all then return nil end
      return fired, 'm:', state
    end
  end
  return tonumber(string.match(ref, '^%d+')), redis.call('HGET', run.firingdata, ref) or 'm:', state
end

-- current_record returns the record of a live trigger key, with the repetition and guards that the schedule has; or
-- nil, as trigger.record_of does. is_same says that its TTL is the one that the schedule knows.
local function current_record(key, is_same)
  local record = trigger.record_of(key, MAX_PAYLOAD)
  local was = record and redis.call('HGET', run.data, key)
  return was and trigger.follow(was, record, is_same) or record
end

-- describe returns the reply of timer_get.
local function describe(due, record, state)
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
  local unless, only_if = guards.key(options, 'U'), guards.key(options, 'I')
  if unless then timer[#timer + 1], timer[#timer + 2] = 'unless', unless end
  if only_if then timer[#timer + 1], timer[#timer + 2] = 'if', only_if end
  local occurrence, text = string.match(options, ';N=(%d+),([^;]*)')
  if text then
    local n = #timer
    timer[n + 1], timer[n + 2], timer[n + 3], timer[n + 4] = 'repeat', text, 'occurrence', tonumber(occurrence)
  end
  return timer
end

--[[ timer_get KEY
Reads a timer: of several of a key the pending one, or a retry that is left beside it, else one that is held, else one
that is owed, else one that is firing. It changes nothing.
Returns nil if there is none, or {"due", ms, "attempt", n, "payload", bytes, "state", "pending", "held", "owed" or
"firing"}, and "late", ms if the timer has a limit of its own, "traceparent", text, "unless", key and "if", key if it
has these of its own, and "repeat", text, "occurrence", n if it repeats; the payload is nil if there is none. Of one
that is firing only the state is certain. ]]
local function timer_get(keys, args)
  local key, refusal = arguments.open_one_key('timer_get', keys, args)
  if refusal then return refusal end
  local due, at = index.pending(key), ttl.read(key)
  local state, record = 'pending', nil
  if at == -1 then
    due = nil
  elseif at > clock.due() then
    due, record = at, current_record(key, at == due)
  elseif due and due <= clock.due() then
    state = states.holding()(key, due) and 'held' or 'owed'
    if state == 'owed' and select(2, states.first_unclaimed(key)) == 'held' then due = nil end
  end
  local member, beside_due, beside_state
  if not due or state == 'owed' then member, beside_due, beside_state = states.first_beside(key) end
  if member and (not due or beside_state == 'pending') then
    due, record, state = beside_due, redis.call('HGET', run.data, member) or 'm:', beside_state
    if state == 'owed' and states.holding()(key, due) then state = 'held' end
  elseif due then
    record = record or redis.call('HGET', run.data, key) or 'm:'
  else
    due, record, state = firing_of(key)
    if not due then return false end
  end
  return describe(due, record, state)
end

redis.register_function { function_name = 'timer_get', callback = bound(timer_get), flags = { 'no-writes' } }
