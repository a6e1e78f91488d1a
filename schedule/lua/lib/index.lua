--[[
The index of a partition of the schedule, with t for the partition's hash tag:
  timerd:{t}:            never exists; see below
  timerd:{t}:due         ZSET  member -> due
  timerd:{t}:data        HASH  member -> record
  timerd:{t}:firing      ZSET  ref -> end of lease, or what else scores.lua has
  timerd:{t}:firingdata  HASH  ref -> record
  timerd:{t}:fired       ZSET  tombstone -> when
  timerd:{t}:retried     ZSET  event id -> when its retry was set
  timerd:{t}:beside      ZSET  names of the retries beside a newer timer, see beside.lua
  timerd:{t}:owed        ZSET  names of the firings that nobody has claimed, see owing.lua
  timerd:{t}:repeat      ZSET  key whose timer repeats -> the serial of its repetition; below 0: it is to be planned
  timerd:{t}:aside       ZSET  member that is set aside -> due, see parked.lua
  timerd:{t}:refused     ZSET  ref that NATS refused, until it is settled -> due; -due if its guard cannot be read
  timerd:{t}:account     ZSET  kind of entering or leaving -> number of timers, see account.lua
  timerd:{t}:database    string, the number of the database that this is in
  timerd:{t}:known       ZSET  app that a timer was set for -> time since which it is known; below 0: is doubted
  timerd:{t}:holds       HASH  namespace -> its hold, see schedule/holds.go; of one partition, t itself, for all
  timerd:{t}:members     ZSET  timerd -> its last heartbeat; about and counts, HASH; of one partition, for all
  timerd:{t}:calls       ZSET  function of the library -> number of its calls counted by calls.count

Times are unix ms on this server's clock.

A member is one of
  key                a timer's key
  :?:key             a contested timer (see contest)
  :d:key             a contested timer that was dismissed (see dismiss)
  :due.attempt:key   a retry that waits beside a newer timer of its key
  :sdue.attempt:key  a timer that was set aside (see parked.lua)
No timer key begins with a colon. A ref is due:attempt:key; with the attempt 0 it is a plan, see repetition.plan_ref.

A record is <attempt><flags><options>:<payload>. The attempt is timerd's own count; it is empty where the payload
decides. The flags are
  m  there is no payload      l  the payload was too large
  e  the key was evicted      x  fired because of its expired event
  u  the key is gone, and nobody knows why   h  it was held, and becomes a dead letter
  p  it is an occurrence of a repetition, and another one may follow
Each option is ;<name>=<value>. Most records have none. They are
  L  the greatest lateness at the claim, in ms, with which the timer still fires; 0: any
  D  the same, but a timer that is later is forgotten instead of becoming a dead letter
  O  of a retry, a postponed timer or a replay: when the timer's first firing was due, a dot, its attempt
  T  the traceparent that was set with it      S  its tracestate, each byte as two hex digits
  U  the key of its guard UNLESS, see guards.lua      I  that of IF
  G  of a firing: the guard that said no, or cannot be read; perhaps one of TIMERD_GUARD
  A  of an occurrence: the stretches of fired occurrences, once one was left out (schedule/occurrence.go)
  R  of an occurrence: serial, nominal due time, from, until, times, catch-up
  N  of an occurrence, and of a retry of one: its number, and its interval or expression, which holds neither a colon
     nor a semicolon
The record of a contested timer is <due><flags>/<record>, with the flags ! counts as run out, ? is unconfirmed.
Of the fields of data, :l: says that there may be large records, and :?: until when timers may be contested; :h: is the
list of holds (holds.lua), and :i:, :s: and :w: tell of a restored Redis (restored.lua). All are in meta.lua, too.

A tombstone is one of
  key          a timer that lately fired
  :c:key       a timer that was cancelled after its key had run out; like the first, it explains an expired event
               that is still to come
  :u:key       a timer that was cancelled since its key last fired
  :i:due:key   reserves the id of a firing, so that no other timer gets it
  :x:<call>    a call of set_time that has added a firing to a repetition

A step is a function, or a script (schedule/step.go). It is atomic: a timer is in due or in firing, never in both or
neither, until it is cancelled or settled. So none is lost or doubled if a timerd dies before or after a step, if a step
runs twice, or if two timerds run it at once. The head of each file says what else holds then.

A step for one partition has the partition's prefix, timerd:{t}:, as its KEYS[1]. No key has that name. So in a cluster
Redis refuses the step before it begins while the slot moves: the old server answers ASK, the new one MOVED. After
ASKING, which clients send before a function that they were redirected with, the new server would run it on half a
partition, and a step for many partitions names no key. So each asks with EXISTS for the prefix and a second key of each
partition. While one of several keys is missing, both servers refuse that in any case. ]]

-- begin_timeless is begin for a step that asks no clock: reading it would cost some of them a fifth. A table that grows
-- costs more than one that has all its fields at once.
function index.begin_timeless()
  run = {
    time = false, now = false, now_text = false, spent = 0, may_be_large = false,
    prefix = false, due = false, data = false, firing = false, firingdata = false, fired = false,
    explained = false, nexts = false, beside_others = false, length = false, length_text = false,
  }
end

-- begin begins a call, with a new state.
function index.begin()
  index.begin_timeless()
  clock.begin()
end

-- enter names the index of a partition.
function index.enter(prefix)
  run.prefix = prefix
  run.due, run.data = prefix .. 'due', prefix .. 'data'
  run.firing, run.firingdata = prefix .. 'firing', prefix .. 'firingdata'
  run.fired = prefix .. 'fired'
  run.may_be_large = nil
end

-- enter_firings is enter for a step that only ends firings.
function index.enter_firings(prefix)
  run.prefix, run.firing, run.firingdata = prefix, prefix .. 'firing', prefix .. 'firingdata'
end

-- open begins a call on one partition. In a cluster it ends the call if the partition is not here as a whole.
function index.open(prefix)
  index.begin()
  index.enter(prefix)
  if CLUSTER and type(redis.pcall('EXISTS', prefix, run.due)) ~= 'number' then
    error(redis.error_reply('TRYAGAIN timerd: the slot of the partition is moving to another server'))
  end
end

-- index.tag returns the hash tag of the partition.
function index.tag() return string.sub(run.prefix, #PREFIX + 1, -#SUFFIX - 1) end

-- index.pending returns a member's due time, or nil.
function index.pending(member)
  return tonumber(redis.call('ZSCORE', run.due, member) or nil)
end

-- head returns the first due time, or -1.
function index.head()
  local first = redis.call('ZRANGE', run.due, '0', '0', 'WITHSCORES')
  return tonumber(first[2] or -1)
end

-- Members enter and leave due and firing by the functions that follow and batch.move. beside.lua and owing.lua write
-- beside and owed.

-- put has a member be due at a time, with a record. kind says how it has entered, for the account; nil: it was moved.
-- An adopted one enters only if nothing of it was there. put returns whether nothing was.
function index.put(member, due, record, kind)
  local is_new = index.rewrite(member, record)
  is_new = redis.call('ZADD', run.due, due, member) == 1 and is_new
  if kind == account.ADOPTED then account.note(kind, is_new and 1 or 0) elseif kind then account.set(kind, is_new) end
  return is_new
end

-- put_all is put for several adopted members: each due time with its member, and each member with its record.
function index.put_all(dues, records)
  for i = 2, #records, 2 do sizes.note(records[i]) end
  local new = redis.call('HSET', run.data, unpack(records))
  account.note(account.ADOPTED, math.min(new, redis.call('ZADD', run.due, unpack(dues))))
end

-- rewrite gives a member another record, and returns whether it had none.
function index.rewrite(member, record)
  sizes.note(record)
  return redis.call('HSET', run.data, member, record) == 1
end

-- redate makes a member with a record due at another time. It returns whether due lacked it.
function index.redate(member, due) return redis.call('ZADD', run.due, due, member) == 1 end

-- forget takes a member out of the schedule. kind says how, for the account; without one it is moved.
function index.forget(member, kind)
  local gone = redis.call('ZREM', run.due, member)
  account.note(kind, math.max(gone, redis.call('HDEL', run.data, member)))
end

-- drop removes the record of a member that due has lost, and returns whether there was one. kind is as in forget.
function index.drop(member, kind)
  local had = redis.call('HDEL', run.data, member)
  account.note(kind, had)
  return had == 1
end

-- fire adds a firing with a score. kind is as in put.
function index.fire(ref, score, record, kind)
  sizes.note(record)
  redis.call('HSET', run.firingdata, ref, record)
  account.note(kind, redis.call('ZADD', run.firing, score, ref))
end

-- is_taken reports whether another firing, or half of one, has a ref. An equal record alone is of a refused claim.
function index.is_taken(ref, record)
  local found = redis.call('HGET', run.firingdata, ref)
  return redis.call('ZSCORE', run.firing, ref) or found and not guards.is_same(found, record)
end

-- fire_if_free is fire, but returns false and adds nothing if another firing has the ref.
function index.fire_if_free(ref, score, record, kind)
  if index.is_taken(ref, record) then return false end
  index.fire(ref, score, record, kind)
  return true
end

-- rewrite_firings gives firings other records: each ref with its record.
function index.rewrite_firings(records) redis.call('HSET', run.firingdata, unpack(records)) end

-- rescore gives firings with records other scores: each score with its ref.
function index.rescore(firings_by_score) redis.call('ZADD', run.firing, unpack(firings_by_score)) end

-- end_firings takes firings out of the schedule, by a kind as in forget. is_listed: some may be in refused or owed.
function index.end_firings(refs, is_listed, kind)
  local gone = redis.call('ZREM', run.firing, unpack(refs))
  if is_listed then
    redis.call('ZREM', run.prefix .. 'refused', unpack(refs))
    owing.unlist(refs)
  end
  account.note(kind, math.max(gone, redis.call('HDEL', run.firingdata, unpack(refs))))
end
