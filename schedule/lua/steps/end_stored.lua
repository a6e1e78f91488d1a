#!lua flags=allow-oom
--[[ end_stored ends timers whose messages are stored in a stream: a restored partition has them again. A timer that
repeats is claimed instead, for the caller to settle it.
KEYS    1  the partition's prefix
ARGV    1  how they have ended, a kind of the account
        2  lease in ms
        3  the last due time that the partition can know of, in ms. If a message is of a later one, another
           timer of its key is doubtful: it may be the same one, moved
        4  1 to change nothing
        then for each message the key, the due time and the attempt of its id, and as far as that is known which
        occurrence it is of, its number, a comma and its repetition, else an empty string
Returns for the first messages, as many as there was room for: 0, no timer has that id; 1, it has ended, or would have;
2, there is a doubtful timer; 3, the key has an earlier occurrence, which is over if the message is of its repetition;
or the ref and the record, without payload, of an occurrence that is claimed.
If its reply is lost: again it returns 0 for ended timers, and the same claims. If the caller dies before it settles
them: they are claimed and published again once their leases end, unless this ran again before. ]]

-- header returns a record without its payload.
local function header(record) return string.match(record, '^[^:]*') .. ':' end

-- read returns a timer's record from one of the two hashes.
local function read(hash, name)
  local record = redis.call('HGET', hash, name) or 'm:'
  run.spent = run.spent + #record
  return record
end

-- has_attempt reports whether a timer can have an attempt: its record states it, or states none and its payload may.
local function has_attempt(record, attempt)
  local stated = entry.attempt(record)
  return stated == attempt or stated == '' and (attempt == '1' or entry.may_state_attempt(entry.value(record)))
end

-- end_firing ends a firing, or claims it.
local function end_firing(t, key, ref, record)
  if t.dry then return 1 end
  if entry.is_repeating(record) then
    index.rescore({ t.lease_end, ref })
    t.claimed[key] = true
    return { ref, header(record) }
  end
  index.end_firings({ ref }, true, t.kind)
  return 1
end

-- end_own ends a key's own timer, or claims it. A key that lives on with another TTL was set since: as the next
-- occurrence, or as another timer.
local function end_own(t, key, due, record)
  if t.dry then return 1 end
  local at = ttl.try(key)
  if at == due then redis.pcall('UNLINK', key) end
  if entry.is_repeating(record) then
    t.claimed[key] = true
    return { firings.move_one(key, due, record, t.lease_end), header(record) }
  end
  redis.call('ZADD', run.fired, clock.real_text(), key)
  index.forget(key, t.kind)
  if at and at ~= due and at ~= -2 then contest.follow(key, at, MAX_PAYLOAD) end
  return 1
end

-- end_beside ends a timer that waits beside its key's own one, by the time and attempt in its name. It returns whether
-- it can have that attempt.
local function end_beside(t, key, name, attempt)
  local member = ':' .. name .. ':' .. key
  if not has_attempt(read(run.data, member), attempt) then return false end
  if not t.dry then beside.forget(member, key, t.kind) end
  return true
end

-- end_contested ends a contested or dismissed timer of a key, and returns whether it has that due time.
local function end_contested(t, key, due, prefix)
  run.spent = run.spent + redis.call('HSTRLEN', run.data, prefix .. key)
  if contest.read(key, prefix) ~= tonumber(due) then return false end
  if not t.dry then index.forget(prefix .. key, t.kind) end
  return true
end

-- is_doubtful reports whether a key with an unknown message has another timer that fires once.
local function is_doubtful(t, key, due, own)
  return due > t.known and (own ~= nil or t.owes and #owing.of_key('owed', key, 0, 1) > 0
    or t.besides and #beside.members(key, 0, 1) > 0)
end

-- end_occurrence ends the occurrence of a key that repeats if a later message is of that one or of a later one, by its
-- number: it was left out, or moved to a later time. If it may be, but the message is not known yet, it returns 3. A
-- message of an earlier time may be of another repetition of the key, and ends none.
local function end_occurrence(t, key, due, of)
  if t.claimed[key] then return 3 end
  local number, rhythm = string.match(of, '^(%d+),(.*)$')
  local was, ref, record = index.pending(key), nil, nil
  if was then record = read(run.data, key) else ref, record = firings.occurrence(key) end
  was = was or ref and tonumber(string.match(ref, '^%d+'))
  if not was or was > due then return 0 end
  if not number then return 3 end
  local own, own_rhythm = string.match(record, '^[^:]*;N=(%d+),([^:;]*)')
  if own_rhythm ~= rhythm or not entry.is_repeating(record) then return due > t.known and 2 or 0 end
  if tonumber(own) > tonumber(number) then return 0 end
  return ref and end_firing(t, key, ref, record) or end_own(t, key, was, record)
end

-- The names that a message's timer can have in due and in firing, by their places among the t.names names of each
-- message in due, or the two in firing. Those of contested timers count from t.contested, nil if there are none in the
-- partition, and those of timers that wait beside from t.besides.
local OWN, CONTESTED, DISMISSED = 1, 1, 2
local BESIDE, ASIDE, PLAIN_BESIDE, PLAIN_ASIDE = 1, 2, 3, 4
local EXACT, PLAIN = 1, 2

-- add_names adds the names that a message's timer can have in due.
local function add_names(t, names, key, due, attempt)
  local n = #names
  names[n + OWN] = key
  if t.contested then
    local at = n + t.contested
    names[at + CONTESTED], names[at + DISMISSED] = ':?:' .. key, ':d:' .. key
  end
  if t.besides then
    local at, stated, plain = n + t.besides, due .. '.' .. attempt .. ':' .. key, due .. '.:' .. key
    names[at + BESIDE], names[at + ASIDE] = ':' .. stated, ':s' .. stated
    names[at + PLAIN_BESIDE], names[at + PLAIN_ASIDE] = ':' .. plain, ':s' .. plain
  end
end

local NONE = {}

-- look returns for some messages in ARGV the scores of their timers' names in due and in firing, and the serials of
-- their keys' repetitions: three flat lists.
local function look(t, ARGV, first, last)
  local due_names, refs, names = {}, {}, {}
  for i = first, last, 4 do
    local key, due, attempt = ARGV[i], ARGV[i + 1], ARGV[i + 2]
    add_names(t, due_names, key, due, attempt)
    if t.fires then
      refs[#refs + 1] = due .. ':' .. attempt .. ':' .. key
      refs[#refs + 1] = due .. '::' .. key
    end
    if t.repeats then names[#names + 1] = key end
  end
  return {
    due = redis.call('ZMSCORE', run.due, unpack(due_names)),
    firing = t.fires and redis.call('ZMSCORE', run.firing, unpack(refs)) or NONE,
    serials = t.repeats and redis.call('ZMSCORE', run.prefix .. 'repeat', unpack(names)) or NONE,
  }
end

-- end_one ends the timer with an id, preferably one whose record states the attempt. seen is look's result, and n the
-- message's place in it, from 0.
local function end_one(t, key, due, attempt, of, seen, n)
  local d, f = n * t.names, n * 2
  if seen.firing[f + EXACT] then
    local exact = due .. ':' .. attempt .. ':' .. key
    return end_firing(t, key, exact, read(run.firingdata, exact))
  end
  local b, c = t.besides and d + t.besides, t.contested and d + t.contested
  if b and (seen.due[b + BESIDE] and end_beside(t, key, due .. '.' .. attempt, attempt)
    or seen.due[b + ASIDE] and end_beside(t, key, 's' .. due .. '.' .. attempt, attempt)) then return 1 end
  if seen.firing[f + PLAIN] then
    local plain = due .. '::' .. key
    local record = read(run.firingdata, plain)
    if has_attempt(record, attempt) then return end_firing(t, key, plain, record) end
  end
  local own = tonumber(seen.due[d + OWN] or nil)
  if own == tonumber(due) then
    local record = read(run.data, key)
    if has_attempt(record, attempt) then return end_own(t, key, own, record) end
  end
  if b and (seen.due[b + PLAIN_BESIDE] and end_beside(t, key, due .. '.', attempt)
    or seen.due[b + PLAIN_ASIDE] and end_beside(t, key, 's' .. due .. '.', attempt))
    or c and (seen.due[c + CONTESTED] and end_contested(t, key, due, ':?:')
    or seen.due[c + DISMISSED] and end_contested(t, key, due, ':d:')) then return 1 end
  if seen.serials[n + 1] then return end_occurrence(t, key, tonumber(due), of) end
  return is_doubtful(t, key, tonumber(due), own) and 2 or 0
end

function steps.end_stored(KEYS, ARGV)
  index.open(KEYS[1])
  local has = function(set) return redis.call('EXISTS', run.prefix .. set) == 1 end
  local t = {
    kind = ARGV[1], lease_end = int(clock.due() + tonumber(ARGV[2])), known = tonumber(ARGV[3]), dry = ARGV[4] == '1',
    claimed = {}, owes = has('owed'), fires = has('firing'), repeats = has('repeat'), names = OWN,
  }
  if meta.knows_contest() then t.contested, t.names = t.names, t.names + DISMISSED end
  if has('beside') then t.besides, t.names = t.names, t.names + PLAIN_ASIDE end
  local out, ended, seen = {}, {}, look(t, ARGV, 5, #ARGV)
  for i = 5, #ARGV, 4 do
    if i > 5 and run.spent > BUDGET - firings.LOOK then break end
    local key, of, n = ARGV[i], seen, (i - 5) / 4
    -- Ending a timer may have armed or claimed another one of the key.
    if ended[key] then
      t.fires = true
      of, n = look(t, ARGV, i, i), 0
    end
    local outcome = end_one(t, key, ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], of, n)
    ended[key] = ended[key] or outcome ~= 0
    out[#out + 1] = outcome
  end
  return out
end
