-- A retry whose key was set again waits beside the newer timer, in due under the name :due.attempt:key. The sorted set
-- beside has these names too, by key, all of score 0: <length of key>:<key>:<due.attempt>. So the retries of one key
-- are found as a range. With an s before due.attempt it is a timer that was set aside (see parked.lua).

-- Limit of one key's retries beside newer timers: timer_cancel takes a few milliseconds for them with the largest
-- payloads.
beside.MOST = 150

-- beside.member returns the member of due with a name in beside.
function beside.member(name, key) return ':' .. string.sub(name, #owing.key_prefix(key) + 1) .. ':' .. key end

-- beside.members returns the members of due that wait beside a key's newer timer, from a place on, and at most count.
function beside.members(key, first, count)
  local names = owing.of_key('beside', key, first, count)
  for i = 1, #names do names[i] = beside.member(names[i], key) end
  return names
end

-- beside.forget takes a retry that waits beside a newer timer out of the schedule. kind is as in index.forget.
function beside.forget(member, key, kind)
  index.forget(member, kind)
  local name = string.match(member, '^:([^:]*):')
  redis.call('ZREM', run.prefix .. 'beside', owing.key_prefix(key) .. name)
  if string.byte(name) == 115 then redis.call('ZREM', run.prefix .. 'aside', member) end
end

-- jump returns the offset in ms of the nth try to find a free ms: single steps, then random ones below a bound that
-- doubles. So the tries stay few, however many are taken.
local STEPS = 8
function beside.jump(n)
  if n <= STEPS then return n end
  if n == STEPS + 1 then math.randomseed(clock.part()) end
  return math.random(STEPS + 1, 2 ^ math.min(n - 4, 30))
end

-- beside.put puts a retry beside a newer timer, under a unique name. kind is as in index.put.
function beside.put(key, name, due, record, kind)
  redis.call('ZADD', run.prefix .. 'beside', 0, owing.key_prefix(key) .. name)
  index.put(':' .. name .. ':' .. key, due, record, kind)
end

-- beside.add puts a retry beside a newer timer until due, or a little later if another one has that time. It returns
-- its due time, or nil if too many wait beside this key's timer. kind is as in index.put. aside begins its name:
-- nothing, or an s. until_then is the time of its claim, if that differs.
function beside.add(key, due, attempt, record, kind, aside, until_then)
  aside = aside or ''
  if #beside.members(key, beside.MOST - 1, 1) > 0 then return nil end
  local at, name, tries = due, aside .. int(due) .. '.' .. attempt, 0
  while redis.call('ZSCORE', run.prefix .. 'beside', owing.key_prefix(key) .. name) do
    tries = tries + 1
    at = due + beside.jump(tries)
    name = aside .. int(at) .. '.' .. attempt
  end
  beside.put(key, name, until_then or at, record, kind)
  if aside == 's' then redis.call('ZADD', run.prefix .. 'aside', at, ':' .. name .. ':' .. key) end
  return at
end

-- rearm sets a timer, after another wait, for a time ahead: with its trigger key, or beside the newer timer of its key.
-- It returns its due time and its member of due, or nil if too many wait beside that timer. Between two occurrences of
-- a repetition the key is kept for the next one. The user's key comes first: if timerd may not write it, the timer
-- waits without one. kind is as in index.put.
function beside.rearm(key, due, attempt, record, kind)
  local was = index.pending(key)
  if was == due then due = due + 1 end
  local serial = not was and redis.call('ZSCORE', run.prefix .. 'repeat', key)
  local is_kept = serial and not entry.is_occurrence_of(record, serial)
  if not was and not is_kept and redis.pcall('EXISTS', key) == 0
    and ttl.try_set(key, due) then
    index.put(key, due, record, kind)
    return due, key
  end
  due = beside.add(key, due, attempt, record, kind)
  if not due then return nil end
  return due, ':' .. int(due) .. '.' .. attempt .. ':' .. key
end
