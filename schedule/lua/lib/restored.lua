-- Whether the data are as they were left: a server that restarted, was promoted or has got a backup may have older
-- ones, with timers that have fired since. Three fields of data tell:
--   :i:  the incarnation of the server that compared the data last; with a * behind it, timers that were due before
--        that may still be in due
--   :s:  the last heartbeat of a timerd, in ms
--   :w:  <until> <last> <ended>, of the last server that found that it was another one: timers that were due until then
--        wait, and the last heartbeat was that. It has no ended yet, or it ended then: at once, if the heartbeat was so
--        young that JetStream drops second events
-- In a cluster each server has homes: its first, middle and last partition. The first one that can be read has :i:, as
-- others may be moving, and all have :s:. The * and :w: are in the data of each partition with timers, so a wait
-- moves with its slot. A claim on a server whose home is of another one is refused until a timerd has run begin_wait.

-- The incarnation of this server, once its data were found to be compared. A restart, a copy of all data from a master
-- and FUNCTION RESTORE make the library anew, and with it this variable; a replica that is promoted has never set it.
-- One that was promoted before may have an old one: but its master has written another one to the data meanwhile.
local known

-- The number of characters of each of two random ids in an incarnation.
local SHORT = 12

-- read reads the server's incarnation, or nil if it does not tell.
local function read()
  local info = redis.pcall('INFO', 'server', 'replication')
  if type(info) ~= 'string' then return nil end
  local run_id, replication_id = string.match(info, '\nrun_id:(%w+)'), string.match(info, '\nmaster_replid:(%w+)')
  return run_id and replication_id and string.sub(run_id, 1, SHORT) .. string.sub(replication_id, 1, SHORT)
end

-- is_own reports whether an incarnation is this server's, or the server does not tell.
local function is_own(incarnation)
  if known and incarnation == known then return true end
  local own = read()
  if own and incarnation ~= own then return false end
  known = own
  return true
end

-- restored.own returns this server's incarnation, or nil if it does not tell.
restored.own = read

-- home_of returns the first of some prefixes, with a space between them, whose data can be read here, and its field
-- :i:; or nil. Others are moving, or somebody else has written there.
local function home_of(homes)
  for home in string.gmatch(homes, '%S+') do
    local said = redis.pcall('HGET', home .. 'data', ':i:')
    if type(said) ~= 'table' then return home, said or '' end
  end
end

-- restored.is_compared reports by the homes of a server of a cluster whether its data are compared, and if not whether
-- the home has no incarnation. If none can be read, the memory of this library tells.
function restored.is_compared(homes)
  local home, said = home_of(homes)
  if home then return is_own(string.match(said, '^%w*')), said == '' end
  local own = read()
  return not own or own == known
end

-- restored.is_usual reports by the field :i: whether the data of a partition are compared, and nothing waits.
function restored.is_usual(incarnation)
  if CLUSTER then return not incarnation or incarnation == known end
  return incarnation == known or not known and is_own(incarnation)
end

-- last_seen returns the last heartbeat of a timerd, or nil. Versions without the field :s: noted it elsewhere.
local function last_seen()
  local last = tonumber(redis.call('HGET', run.data, ':s:') or nil)
  for _, set in ipairs(last and {} or { 'members', 'silent' }) do
    local newest = tonumber(redis.call('ZRANGE', run.prefix .. set, 0, 0, 'REV', 'WITHSCORES')[2] or nil)
    last = newest and math.max(newest, last or newest) or last
  end
  return last
end

-- put_wait begins the wait of a partition for the timers due by now. before is its last wait, or nil; last_beat the
-- last heartbeat; forgiven the greatest age of that, in ms, at which JetStream drops second events. While timers wait
-- for the comparison of an earlier restore, none is forgiven: what the comparison has ended so far may be back. It
-- returns the wait.
local function put_wait(before, last_beat, forgiven, incarnation)
  local till, still = clock.due(), before and not before.ended
  local ended = not still and math.abs(clock.real() - last_beat) <= tonumber(forgiven) and till or nil
  local wait = { till = till, last = still and math.min(last_beat, before.last) or last_beat, ended = ended }
  redis.call('HSET', run.data, ':i:', incarnation .. '*', ':w:', int(till) .. ' ' .. int(wait.last)
    .. (ended and ' ' .. int(ended) or ''))
  return wait
end

-- begin writes the fields of a server that is another one than before, and returns the wait, or nil.
local function begin(before, forgiven)
  local last = last_seen()
  known = read()
  if last then return put_wait(before, last, forgiven, known) end
  redis.call('HSET', run.data, ':i:', known) -- no timerd has run on these data
  return before
end

-- restored.begin_here begins the wait of a partition of a cluster, if it has timers. It asks for one key at a time: of
-- a slot that is moving some are here.
function restored.begin_here(last_beat, forgiven)
  local fields = redis.call('HLEN', run.data)
  if fields > 0 and meta.without(run.data, fields) > 0 or redis.call('EXISTS', run.firing) == 1
    or redis.call('EXISTS', run.due) == 1 then
    put_wait(waiting.last(), last_beat, forgiven, '')
  end
end

-- restored.settle_in notes that the data of this server are compared, once each partition with timers has its wait.
function restored.settle_in(homes, own)
  local home, said = home_of(homes)
  if home then
    local mark = string.match(said, '%*$') or ''
    redis.pcall('HSET', home .. 'data', ':i:', own .. mark, ':s:', clock.real_text())
  end
  known = own
end

-- unmark notes that nothing of the partition waits.
local function unmark(incarnation)
  if incarnation ~= '' and (not CLUSTER or incarnation == known) then
    redis.call('HSET', run.data, ':i:', incarnation)
  else
    redis.call('HDEL', run.data, ':i:')
  end
end

-- restored.compare finds out by the fields :i: and :w: whether the data are this server's. If not, it begins a wait; in
-- a cluster begin_wait has done so. It returns the last wait, also one that has ended, or nil.
function restored.compare(incarnation, wait, forgiven)
  local plain, mark = string.match(incarnation or '', '^(%w*)(%*?)$')
  local last = waiting.read(wait)
  if not CLUSTER and not is_own(plain) then return begin(last, forgiven) end
  if mark == '*' then
    local first = last and last.ended and index.head()
    if not last or first and (first == -1 or first > last.till) then unmark(plain) end
  elseif CLUSTER and plain ~= '' and plain ~= known then
    redis.call('HDEL', run.data, ':i:', ':s:') -- of an earlier home
  end
  return last
end

-- restored.tidy removes the leftovers of an ended wait in a partition of a cluster without timers.
function restored.tidy()
  if not CLUSTER then return end
  local said = redis.call('HMGET', run.data, ':i:', ':w:')
  local wait = waiting.read(said[2])
  if wait and wait.ended and redis.call('EXISTS', run.due, run.firing, run.firingdata) == 0 then
    redis.call('HDEL', run.data, ':w:')
    unmark(string.match(said[1] or '', '^%w*'))
  end
end

-- restored.note notes a heartbeat in the data, unless they are another server's: then it compares them first.
function restored.note(forgiven)
  local said = redis.call('HMGET', run.data, ':i:', ':w:')
  restored.compare(said[1], said[2], forgiven)
  redis.call('HSET', run.data, ':s:', clock.real_text())
end

-- restored.note_at notes a heartbeat at the homes of a server of a cluster, if its data are compared. It returns
-- whether they are, and the server's incarnation, or an empty text if that is unknown.
function restored.note_at(homes)
  if not restored.is_compared(homes) then return false end
  for home in string.gmatch(homes, '%S+') do redis.pcall('HSET', home .. 'data', ':s:', clock.real_text()) end
  return true, known or ''
end

-- restored.holding returns is_held of holds.read, which then also holds timers due until till.
function restored.holding(till, is_held)
  return function(key, due) return due <= till or is_held ~= nil and is_held(key, due) end
end

-- restored.finish ends the wait for timers due until a time: they are free from now on. It returns whether there was
-- such a wait.
function restored.finish(till)
  local wait = waiting.last()
  if not wait or wait.ended or wait.till ~= till then return false end
  redis.call('HSET', run.data, ':w:', int(wait.till) .. ' ' .. int(wait.last) .. ' ' .. clock.due_text())
  return true
end
