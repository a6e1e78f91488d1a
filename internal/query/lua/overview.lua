#!lua flags=allow-oom,allow-cross-slot-keys,no-writes
--[[ overview counts the timers of many partitions of one server. It writes nothing.
ARGV    the hash tags of the partitions
Returns {this server's clock in unix ms, the numbers of pending, owed and firing timers, partitions
left out because their slots are moving, the earliest due time of an owed timer, or -1 if unknown,
its key, the number of timers on hold, and the number of owed ones that may be on hold, if there
are holds: not reached by a claim, and not read by this call}. The earliest due time leaves out
timers given back with a pause. Timers that may have been published count as firing, all others
given back as owed. ]]

index.begin()
look.begin()
local pending, owed, firing, moving, held, unseen, oldest, oldest_key = 0, 0, 0, 0, 0, 0, -1, ''

local function note_owed(due, key)
  if due and key and (oldest < 0 or due < oldest) then oldest, oldest_key = due, key end
end

-- count_due counts the entries of due that no claim has moved.
local function count_due(due_key, is_held)
  local late = redis.call('ZCOUNT', due_key, '-inf', int(clock.due()))
  pending = pending + redis.call('ZCARD', due_key) - late
  local listed, n = look.at(due_key, '-inf', '+inf', is_held and late or math.min(late, 1))
  local here = 0
  for i = 1, 2 * n, 2 do
    local key, due = string.match(listed[i], '^:[^:]*:(.*)$') or listed[i], tonumber(listed[i + 1])
    if is_held and is_held(key, due) then here = here + 1 else note_owed(due, key) end
  end
  held, owed = held + here, owed + late - here
  if is_held then unseen = unseen + late - n end
end

-- count_firing counts the entries of firing.
local function count_firing(prefix, is_held)
  local firing_key = prefix .. 'firing'
  local still = redis.call('ZCOUNT', firing_key, HELD_TEXT, '+inf')
  local firings, names = redis.call('ZCARD', firing_key) - still, redis.call('ZCARD', prefix .. 'owed') - still
  -- First the entries that anybody may claim at once, oldest first; last the ones that may have been published.
  local free = redis.call('ZCOUNT', firing_key, '-inf', '(1')
  local given = free > 0 and redis.call('ZCOUNT', firing_key, '(' .. PAUSED, '(1') or 0
  local here, rest = 0, firings - free
  free = free - given
  local listed, n = look.at(firing_key, '-inf', '+inf', is_held and free or math.min(free, 1))
  for i = 1, 2 * n, 2 do
    local due, key = string.match(listed[i], '^(%d+):%d*:(.*)$')
    if is_held and key and is_held(key, scores.due_of_free(listed[i], tonumber(listed[i + 1]))) then
      here = here + 1
    else
      note_owed(tonumber(due), key)
    end
  end
  if is_held then unseen = unseen + free - n end
  -- A name in owed may have outlived its firing.
  local unclaimed = math.min(math.max(free + given, names), firings)
  local paused = unclaimed - free - given
  listed, n = look.at(firing_key, '1', '+inf', paused > 0 and rest or 0)
  for i = 1, 2 * n, 2 do
    local score = tonumber(listed[i + 1])
    if score < HELD and score % 1 ~= 0 then
      paused = paused - 1
      local key = string.match(listed[i], '^%d+:%d*:(.*)$')
      if scores.may_be_published(score) then
        given = given + 1
      elseif is_held and key and is_held(key, math.huge) then
        here = here + 1
      end
    end
  end
  if is_held and n < rest then unseen = unseen + math.max(paused, 0) end
  held, owed = held + still + here, owed + unclaimed - given - here
  firing = firing + firings - unclaimed + given
end

for i = 1, #ARGV do
  local prefix = PREFIX .. ARGV[i] .. SUFFIX -- never exists, see index.lua
  local here = redis.pcall('EXISTS', prefix .. 'due', prefix .. 'firing', prefix)
  if type(here) == 'table' then
    moving = moving + 1
  elseif here > 0 then
    local _, is_held = holds.read(redis.call('HGET', prefix .. 'data', ':h:') or nil)
    count_due(prefix .. 'due', is_held)
    count_firing(prefix, is_held)
  end
end
return { clock.due(), pending, owed, firing, moving, oldest, oldest_key, held, unseen }
