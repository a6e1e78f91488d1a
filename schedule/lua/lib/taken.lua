-- The firings that a claim takes from one partition when it looks at more than the usual. A taking has
--   limit, room     the room for firings: their number, and the bytes of their payloads
--   lease_end       in text
--   since           the time since which the caller has heard every event, in ms
--   is_held         reports whether a hold covers a key and its due time, or it waits; nil if nothing is held
--   wait, waits_until  the last wait (restored.lua), or nil, and until which due time timers wait, or -1
--   generation      of the list of holds
--   count, looked   the number of firings taken, and of entries of the index looked at
--   moved, held_room  the number of held timers moved, and the room left for them, in bytes
--   contested_until   until when timers of the partition may be contested at the latest
--   keys            whose timers were taken
--   refs            of firings that were free
--   rescheduled, cancelled, aside, aside_key
--                   the numbers of due timers that had another TTL, had lost it, or were set aside, and the key of one
--                   of those
--   owed, freed, kept, reclaimed, due
--                   the firings: a ref and a record each. See claim.lua

-- Limits of the held due timers that one call moves: number, and about their bytes.
taken.MOST_HELD, taken.MOST_HELD_BYTES = 256, 200000

-- taken.lease_end returns the end of a claim's lease in text. A claim without firings needs none.
function taken.lease_end(of)
  of.lease_end = of.lease_end or int(of.lease_ends)
  return of.lease_end
end

-- begin returns an empty taking with its room, or nil and an error if the partition's list of holds is older than the
-- caller's.
function taken.begin(of, since)
  local said = redis.call('HMGET', run.data, ':?:', ':h:', ':i:', ':w:')
  local generation, is_held = holds.read(said[2])
  if generation < of.generation then return nil, redis.error_reply('BEHIND timerd: the list of holds') end
  local wait = restored.compare(said[3], said[4], of.forgiven)
  local waits_until = wait and not wait.ended and wait.till
  if waits_until then is_held = restored.holding(waits_until, is_held) end
  if run.beside_others == nil then
    run.beside_others = redis.call('EXISTS', run.prefix .. 'owed', run.prefix .. 'beside') > 0
  end
  return {
    limit = of.limit, room = of.room, lease_end = taken.lease_end(of), since = tonumber(since), is_held = is_held,
    generation = generation, wait = wait, waits_until = waits_until or -1,
    count = 0, looked = 0, moved = 0, held_room = taken.MOST_HELD_BYTES, contested_until = said[1], keys = {},
    refs = {},
    rescheduled = 0, cancelled = 0, aside = 0, aside_key = '',
    owed = {}, freed = {}, kept = {}, reclaimed = {}, due = {},
  }
end

-- add adds a firing of a kind, once its guards are judged.
function taken.add(t, kind, ref, record)
  record = judging.one(ref, record, kind == 'kept' or kind == 'reclaimed')
  local all = t[kind]
  local n = #all
  all[n + 1], all[n + 2] = ref, record
  t.count, t.room = t.count + 1, t.room - #record
end

-- add_made claims the firing that make makes of a timer. A held one becomes owed; the next claim holds it.
function taken.add_made(t, make, key, due, record)
  if t.is_held and t.is_held(key, due) then return make(key, due, record, '0') end
  taken.add(t, 'due', make(key, due, record, t.lease_end), record)
end

-- is_full reports whether there is no room for more.
function taken.is_full(t) return t.count >= t.limit or t.room <= 0 end

-- follow takes in the key of a due timer that lives on, and counts the outcome.
function taken.follow(t, key, at)
  local outcome = contest.follow(key, at, MAX_PAYLOAD)
  if outcome == -1 then t.cancelled = t.cancelled + 1 elseif outcome == 2 then t.rescheduled = t.rescheduled + 1 end
end

-- reply returns the claim's part of the reply: names and values, without zeros and empty ones.
function taken.reply(t, next_due, looked)
  local reply = { 'next', next_due, 'full', 1 }
  local function say(name, value, nothing)
    if value ~= nothing then reply[#reply + 1], reply[#reply + 2] = name, value end
  end
  for _, name in ipairs({ 'rescheduled', 'cancelled', 'aside' }) do say(name, t[name], 0) end
  say('aside_key', t.aside_key, '')
  say('looked', looked, '')
  if t.wait and t.wait.ended then
    say('waited_until', t.wait.till)
    say('last_seen', t.wait.last)
    say('waited', t.wait.ended - t.wait.till, 0)
  end
  for _, kind in ipairs({ 'owed', 'freed', 'kept', 'reclaimed', 'due' }) do
    if #t[kind] > 0 then say(kind, t[kind]) end
  end
  return reply
end
