-- What the functions have set in the partitions of this server of a cluster lately, in memory: a
-- sweep that asks for it need not ask each partition. It lives for as long as the library does in
-- this process, and begins anew with it, or where it cannot say what is missing.

-- The channel on which the timerds that hear this server are told what is set, or false.
noted.channel = false

-- How many are kept: what a thousand timers a second that are the first of their partitions bring
-- in some seconds. It takes half a MB.
local MOST_NOTED = 8192

-- By how many ms the clock may go back without more ado: what is due sooner than that may be over by
-- then, and is noted again.
local BACK = 1000

-- How many bytes the name of a channel has at most.
local MOST_CHANNEL = 64

-- noted_since names when it began, or is nil; count is how many there were since. The last ones are in
-- noted_tags and noted_dues. first_noted has the last one of each partition. noted_at is
-- the latest time at which anything was noted or asked.
local noted_since, count, noted_at, restarts = nil, 0, 0, 0
local noted_tags, noted_dues, first_noted = {}, {}, {}

-- note_anew forgets what was noted: whoever asks has to look everywhere.
local function note_anew()
  local t = redis.call('TIME')
  restarts = restarts + 1
  noted_since, count, noted_at, first_noted = t[1] .. t[2] .. '.' .. restarts, 0, run.now, {}
end

-- note notes that something in the partition is to be claimed at a time, 0 for at once. Whoever
-- knows of something that is due earlier, and not yet, learns of it by the claim of that. What is
-- due much later is found in time by those who look everywhere now and then.
function noted.note(due)
  if not noted_since or run.now < noted_at - BACK then note_anew() end
  noted_at = math.max(noted_at, run.now)
  local tag = index.tag()
  local first = first_noted[tag]
  if due > run.now + WAKE_WITHIN or first and first > run.now + BACK and first <= due then return end
  count = count + 1
  local at = count % MOST_NOTED + 1
  noted_tags[at], noted_dues[at], first_noted[tag] = tag, due, due
end

--[[ timer_noted SINCE NOTED CHANNEL
For timerds alone: tells what the functions have set here since it was asked last, and on which
channel of this server the timerds are told of what is set from now on. It writes nothing.
Returns {since, noted, 1 or 0, then hash tags and due times, 0 for at once}: with the first two it
is asked the next time. A 0 says that more may have been set than it knows: by another process or
library, on another master, or too much. ]]
local function timer_noted(_, args)
  index.begin()
  if not noted_since or run.now < noted_at - BACK then note_anew() end
  noted_at, noted.channel = math.max(noted_at, run.now), args[3] and #args[3] <= MOST_CHANNEL and args[3]
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

--[[ timer_moved KEY
For timerds and their commands: notes that something in the partition of the key's slot became due
at another time, otherwise than by the functions. Of the key itself, which anybody may choose, nothing
is kept. It writes nothing. ]]
local function timer_moved(keys)
  index.begin()
  index.enter(PREFIX .. hash_tag.of(redis.call('CLUSTER', 'KEYSLOT', keys[1])) .. SUFFIX)
  noted.note(0)
end

redis.register_function { function_name = 'timer_noted', callback = timer_noted, flags = { 'no-writes' } }
redis.register_function { function_name = 'timer_moved', callback = timer_moved, flags = { 'no-writes' } }
