--[[ overview counts the timers of many partitions of one server. It writes nothing.
ARGV    the hash tags of the partitions
Returns {this server's clock in unix ms, how many timers are pending, owed and firing, how
many partitions are not here as a whole, because their slots are moving, when the timer was
due that has been owed for longest, or -1 if none is, its key, and how many are held}. Firings that were given
back with a pause are owed; which of them was due first is not known. ]]
local now = read_clock()
local pending, owed, firing, moving, held, oldest, oldest_key = 0, 0, 0, 0, 0, -1, ''

local function note_owed(due, key)
  if due and key and (oldest < 0 or due < oldest) then oldest, oldest_key = due, key end
end

for i = 1, #ARGV do
  local prefix = PREFIX .. ARGV[i] .. SUFFIX -- never exists, as in common.lua
  local due_key, firing_key = prefix .. 'due', prefix .. 'firing'
  local here = redis.pcall('EXISTS', due_key, firing_key, prefix)
  if type(here) == 'table' then
    moving = moving + 1
  elseif here > 0 then
    local late = redis.call('ZCOUNT', due_key, '-inf', int(now))
    pending = pending + redis.call('ZCARD', due_key) - late
    owed = owed + late
    if late > 0 then
      local first = redis.call('ZRANGE', due_key, 0, 0, 'WITHSCORES')
      note_owed(tonumber(first[2]), string.match(first[1], '^:[^:]*:(.*)$') or first[1])
    end
    -- Those that anybody may claim at once come first, the oldest of them before the others.
    local free = redis.call('ZCOUNT', firing_key, '-inf', '(1')
    local still = redis.call('ZCOUNT', firing_key, HELD_TEXT, '+inf')
    local firings, unclaimed = redis.call('ZCARD', firing_key) - still, redis.call('ZCARD', prefix .. 'owed') - still
    held = held + still
    unclaimed = math.min(math.max(free, unclaimed), firings) -- names may be left over in owed
    owed = owed + unclaimed
    firing = firing + firings - unclaimed
    if free > 0 then
      local due, key = string.match(redis.call('ZRANGE', firing_key, 0, 0)[1], '^(%d+):%d*:(.*)$')
      note_owed(tonumber(due), key)
    end
  end
end
return { now, pending, owed, firing, moving, oldest, oldest_key, held }
