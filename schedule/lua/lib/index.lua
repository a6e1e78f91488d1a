-- include: names clock
--[[
The index of a partition of the schedule, with t for the partition's hash tag:
  timerd:{t}:            never exists; see below
  timerd:{t}:due         ZSET  member -> due
  timerd:{t}:data        HASH  member -> record
  timerd:{t}:firing      ZSET  ref -> end of lease, or what else score.lua has
  timerd:{t}:firingdata  HASH  ref -> record
  timerd:{t}:fired       ZSET  tombstone -> when
  timerd:{t}:retried     ZSET  event id -> when its retry was set
  timerd:{t}:beside      ZSET  names of the retries beside a newer timer, see beside.lua
  timerd:{t}:owed        ZSET  names of the firings that nobody has claimed, see owed.lua
  timerd:{t}:repeat      ZSET  key whose timer repeats -> the serial of its repetition; below 0:
                                it is to be planned
  timerd:{t}:aside       ZSET  member that is set aside -> due, see parked.lua
  timerd:{t}:refused     ZSET  ref that NATS refused and that is not settled yet -> due
  timerd:{t}:database    string, the number of the database that this is in
  timerd:{t}:known       ZSET  app that a timer was set for -> since when it is known; below
                                0: since when that is doubted, because it seems to have no
                                timers any more
  timerd:{t}:holds       HASH  namespace -> its hold, see schedule/holds.go; of one partition,
                                t itself, for all
  timerd:{t}:members     ZSET  timerd -> its last heartbeat; about and counts, HASH: what it says
                                of itself, and what it has counted; of one partition, for all
  timerd:{t}:calls       ZSET  function of the library -> how many of its calls count_call
                                has counted

Times are unix ms on this server's clock.

A member is one of
  key                a timer's key
  :?:key             a contested timer (see contest)
  :d:key             a contested timer that was dismissed (see dismiss)
  :due.attempt:key   a retry that waits beside a newer timer of its key
  :sdue.attempt:key  a timer that was set aside (see parked.lua)
No timer key begins with a colon. A ref is due:attempt:key; with the attempt 0 it is a
repetition that is to be planned, see plan_ref.

A record is <attempt><flags><options>:<payload>. The attempt is timerd's own count; it is
empty where the payload decides. The flags are
  m  there is no payload      l  the payload was too large
  e  the key was evicted      x  fired because of its expired event
  u  the key is gone, and nobody knows why
  h  it was held, and becomes a dead letter
  p  it is an occurrence of a repetition, and another one may follow
Each option is ;<name>=<value>. Most records have none. They are
  L  how many ms after its due time the timer may be claimed and still fire; 0: any
  D  the same, but a timer that is later is forgotten instead of becoming a dead letter
  O  of a retry, a postponed timer or a replay: when the timer's first firing was due, a dot, its
     attempt
  T  the traceparent that was set with it      S  its tracestate, each byte as two hex digits
  A  of an occurrence: after which one something was left out, which one came then, and perhaps until
     when what follows has fired by a clock that was ahead (schedule/replan.go)
  R  of an occurrence: serial, nominal due time, from, until, times, catch-up
  N  of an occurrence, and of a retry of one: its number, and what it repeats by in text, which
     holds neither a colon nor a semicolon
The record of a contested timer is <due><flags>/<record>, with the flags
  !  the timer counts as run out    ?  it is unconfirmed
The field :l: of data says that data or firingdata may have large records, and :?: until
when timers may be contested at the latest. The field :h: is the list of holds (hold.lua).
A field that is of no timer is in meta.lua, too.

A tombstone is one of
  key          a timer that lately fired
  :c:key       a timer that was cancelled after its key had run out; like the first,
               it explains an expired event that is still to come
  :u:key       a timer that was cancelled since its key last fired
  :i:due:key   a firing whose id a retry or a shifted timer might get: it may not
  :x:<call>    a call of set_time that has added a firing to a repetition

A step is a script or a function. It is atomic and moves a timer as a whole: the timer
is in due or in firing, never in both and never in neither, until it is cancelled or
settled. So no timer is lost or doubled if a timerd dies before or after a step, if a
step runs twice, or if two timerds run it at once. The head of each script says what
else holds then.

A script for one partition has the partition's prefix, timerd:{t}:, as its KEYS[1]. No
key of that name ever exists. In a cluster Redis therefore refuses the script before
it begins while the slot of the partition moves to another server: the old server
answers ASK because the key is missing, the new one MOVED. Nobody may send ASKING
before such a script: the new server would then run it on half a partition. Clients do
send ASKING before a function, and a script for many partitions names no key; these ask with
EXISTS for the prefix and a second key of each partition. While one of several keys is missing, both servers refuse that
in any case.
]]

local prefix
local due_key, data_key, firing_key, firingdata_key, fired_key

-- A record of more bytes than LARGE is large: several are not read at once before it is
-- known how large each is.
local LARGE = 16384

-- name_index names the index of a partition.
local function name_index(partition_prefix)
  prefix = partition_prefix
  due_key, data_key = prefix .. 'due', prefix .. 'data'
  firing_key, firingdata_key = prefix .. 'firing', prefix .. 'firingdata'
  fired_key = prefix .. 'fired'
end

-- open reads the clock and names the index of a partition. It returns TIME's reply.
local function open(partition_prefix)
  local t
  now, t = read_clock()
  now_text = int(now)
  name_index(partition_prefix)
  return t
end

-- tag_of returns the hash tag of the partition.
local function tag_of() return string.sub(prefix, #PREFIX + 1, -#SUFFIX - 1) end
