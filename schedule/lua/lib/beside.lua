-- include: clock index common owed
-- A retry whose key was set again waits beside the newer timer, in due under the name
-- :due.attempt:key. The sorted set beside has these names too, by key, all of score 0:
-- <length of key>:<key>:<due.attempt>. So the retries of one key are found as a range.
-- With an s before due.attempt it is a timer that was set aside (see parked.lua).

-- At most so many retries of one key wait beside newer timers: timer_cancel takes a few
-- milliseconds for them if their payloads are of the largest size.
local MAX_BESIDE = 150

-- beside_member returns the member of due with a name in beside.
local function beside_member(name, key) return ':' .. string.sub(name, #key_prefix(key) + 1) .. ':' .. key end

-- members_beside returns what waits beside a key's newer timer, as members of due, from
-- a place on, and at most count.
local function members_beside(key, first, count)
  local names = redis.call('ZRANGE', prefix .. 'beside', '[' .. key_prefix(key), '(' .. #key .. ':' .. key .. ';', 'BYLEX', 'LIMIT', first, count)
  for i = 1, #names do names[i] = beside_member(names[i], key) end
  return names
end

-- forget_beside takes a retry that waits beside a newer timer out of the schedule.
local function forget_beside(member, key)
  forget(member)
  local name = string.match(member, '^:([^:]*):')
  redis.call('ZREM', prefix .. 'beside', key_prefix(key) .. name)
  if string.byte(name) == 115 then redis.call('ZREM', prefix .. 'aside', member) end
end

-- jump returns by how many ms the nth try to find a free ms is off: some single steps,
-- then any of a number that doubles with each try. So the tries stay few, however many
-- are taken.
local STEPS = 8
local function jump(n)
  if n <= STEPS then return n end
  if n == STEPS + 1 then math.randomseed(tonumber(redis.call('TIME')[2])) end
  return math.random(STEPS + 1, 2 ^ math.min(n - 4, 30))
end

-- add_beside has a retry wait beside a newer timer until the time due, or a little
-- later if another one has that time. It returns when it is due, or nil if too many
-- wait beside this key's timer already. kind is what its name begins with: nothing, or
-- an s. until_then is when it is to be claimed, if that is not the same.
local function add_beside(key, due, attempt, record, kind, until_then)
  if #members_beside(key, MAX_BESIDE - 1, 1) > 0 then return nil end
  local at, name, tries = due, kind .. int(due) .. '.' .. attempt, 0
  while redis.call('ZADD', prefix .. 'beside', 'NX', 0, key_prefix(key) .. name) == 0 do
    tries = tries + 1
    at = due + jump(tries)
    name = kind .. int(at) .. '.' .. attempt
  end
  local member = ':' .. name .. ':' .. key
  redis.call('ZADD', due_key, until_then or at, member)
  redis.call('HSET', data_key, member, record)
  if kind == 's' then redis.call('ZADD', prefix .. 'aside', at, member) end
  return at
end
