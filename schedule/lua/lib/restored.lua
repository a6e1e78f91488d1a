-- Whether the data are as they were left: a server that restarted, was promoted or has got a backup may have older
-- ones, with timers that have fired since. Three fields of data tell:
--   :i:  the incarnation of the server that compared the data last; with a * behind it, timers that were due before
--        that may still be in due
--   :s:  the last heartbeat of a timerd, in ms
--   :w:  <until> <last> <ended>, of the last server that found that it was another one: timers that were due until then
--        wait, and the last heartbeat was that. It has no ended yet, or it ended then: at once, if the heartbeat was so
--        young that JetStream drops second events
-- In a cluster nobody compares: timerd reconcile does, before timerd runs.

-- The incarnation of this server, as far as it was read. A restart, a copy of all data from a master and FUNCTION
-- RESTORE make the library anew, and with it this variable; a replica that is promoted has never set it. One that was
-- promoted before may have an old one: but its master has written another one to the data meanwhile.
local known

-- How many characters of each of two random ids make an incarnation.
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
  known = read()
  return not known or incarnation == known
end

-- restored.is_usual reports by the field :i: whether the data are compared, and nothing waits.
function restored.is_usual(incarnation)
  return CLUSTER or incarnation == known or not known and is_own(incarnation)
end

-- last_seen returns the last heartbeat of a timerd, or nil. Versions without the field :s: have noted it elsewhere.
local function last_seen()
  local last = tonumber(redis.call('HGET', run.data, ':s:') or nil)
  for _, set in ipairs(last and {} or { 'members', 'silent' }) do
    local newest = tonumber(redis.call('ZRANGE', run.prefix .. set, 0, 0, 'REV', 'WITHSCORES')[2] or nil)
    last = newest and math.max(newest, last or newest) or last
  end
  return last
end

-- begin writes the fields of a server that is another one than before. forgiven is the greatest age of the last
-- heartbeat, in ms, at which JetStream drops second events. While timers wait for the comparison of an earlier restore,
-- none is forgiven: what the comparison has ended so far may be back. It returns the wait, or nil.
local function begin(before, forgiven)
  local last = last_seen()
  if not last then -- no timerd has run on these data
    redis.call('HSET', run.data, ':i:', known)
    return before
  end
  local till, still = clock.due(), before and not before.ended
  local ended = not still and math.abs(clock.real() - last) <= forgiven and till or nil
  local wait = { till = till, last = still and math.min(last, before.last) or last, ended = ended }
  redis.call('HSET', run.data, ':i:', known .. '*', ':w:', int(till) .. ' ' .. int(wait.last)
    .. (ended and ' ' .. int(ended) or ''))
  return wait
end

-- restored.compare finds out by the fields :i: and :w: whether the data are this server's. If not, it begins a wait. It
-- returns the last wait, also one that has ended, or nil.
function restored.compare(incarnation, wait, forgiven)
  if CLUSTER then return nil end
  local plain, mark = string.match(incarnation or '', '^(%w*)(%*?)$')
  local last = waiting.read(wait)
  if not is_own(plain) then return begin(last, forgiven) end
  if mark == '*' and last and last.ended then
    local first = index.head()
    if first == -1 or first > last.till then redis.call('HSET', run.data, ':i:', plain) end
  end
  return last
end

-- restored.note notes a heartbeat in the data, unless they are another server's: then it compares them first.
function restored.note(forgiven)
  if CLUSTER then return end
  local said = redis.call('HMGET', run.data, ':i:', ':w:')
  restored.compare(said[1], said[2], forgiven)
  redis.call('HSET', run.data, ':s:', clock.real_text())
end

-- restored.holding returns is_held of holds.read for a time when timers wait until a due time, too.
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
