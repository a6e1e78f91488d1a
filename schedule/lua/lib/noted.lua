-- The latest due times that the functions have set on this server of a cluster, by partition, in memory: so a sweep
-- need not ask each partition. They live as long as the library does in this process, and begin anew with it, or after
-- a gap.

-- The channel of messages about set timers to the timerds that hear this server, or false.
noted.channel = false

-- Limit of the notes: some seconds of a thousand timers a second, each the first of its partition; half a MB.
local MOST_NOTED = 8192

-- The ms by which the clock may go back unnoticed: nearer due times are noted again, as they may be over.
local BACK = 1000

-- The longest name of a channel, in bytes.
local MOST_CHANNEL = 64

-- noted_since is the time at which noting began, or nil, and count the number of entries since. The last entries are in
-- noted_tags and noted_dues. first_noted has the last entry of each partition. noted_at is the latest time at which
-- anything was noted or asked.
local noted_since, count, noted_at, restarts = nil, 0, 0, 0
local noted_tags, noted_dues, first_noted = {}, {}, {}

-- note_anew forgets all notes: the next to ask has to look everywhere.
local function note_anew()
  restarts = restarts + 1
  noted_since, count, noted_at, first_noted = int(clock.micros()) .. '.' .. restarts, 0, clock.real(), {}
end

-- note notes when something in the partition is to be claimed, 0 for at once. It omits a time behind an earlier noted
-- one that is still to come, as the claim then finds it, and times so far ahead that a sweep finds them.
function noted.note(due)
  if not noted_since or clock.real() < noted_at - BACK then note_anew() end
  noted_at = math.max(noted_at, clock.real())
  local tag = index.tag()
  local first = first_noted[tag]
  if due > clock.due() + WAKE_WITHIN or first and first > clock.due() + BACK and first <= due then return end
  count = count + 1
  local at = count % MOST_NOTED + 1
  noted_tags[at], noted_dues[at], first_noted[tag] = tag, due, due
end

--[[ timer_noted SINCE NOTED CHANNEL For timerds alone: returns the notes since the last call, and sets the channel of
this server for messages about timers set from now on. It writes nothing.
Returns {since, noted, 1 or 0, then hash tags and due times, 0 for at once}: with the first two it is asked the next
time. A 0 says that more may have been set than it knows: by another process or library, on another master, or too many
to keep. ]]
local function timer_noted(_, args)
  index.begin()
  if not noted_since or clock.real() < noted_at - BACK then note_anew() end
  noted_at, noted.channel = math.max(noted_at, clock.real()), args[3] and #args[3] <= MOST_CHANNEL and args[3]
  -- A replica that becomes the master has another id, also if it was the master before.
  local replication = redis.pcall('INFO', 'replication')
  local id = noted_since .. (type(replication) == 'string' and string.match(replication, 'master_replid:(%x+)') or '')
  local known = args[1] == id and tonumber(args[2] or nil)
  if not known or known > count or count - known > MOST_NOTED then return { id, count, 0 } end
  local out = { id, count, 1 }
  for i = known + 1, count do
    local at = i % MOST_NOTED + 1
    out[#out + 1], out[#out + 2] = noted_tags[at], noted_dues[at]
  end
  return out
end

--[[ timer_moved KEY For timerds and their commands: notes that something in the partition of the key's slot became due
at another time, otherwise than by the functions. Of the key itself, which anybody may choose, nothing is kept. It
writes nothing. ]]
local function timer_moved(keys)
  index.begin()
  index.enter(PREFIX .. hash_tag.of(redis.call('CLUSTER', 'KEYSLOT', keys[1])) .. SUFFIX)
  noted.note(0)
end

redis.register_function { function_name = 'timer_noted', callback = bound(timer_noted), flags = { 'no-writes' } }
redis.register_function { function_name = 'timer_moved', callback = bound(timer_moved), flags = { 'no-writes' } }
