#!lua flags=allow-oom,allow-cross-slot-keys
--[[ audit compares a page of the index with the keys, in one partition or one after the other in several. Pending
timers whose key was deleted or lost its TTL are cancelled; those whose TTL changed are rescheduled. A timer whose key
is gone for a reason that nobody knows is kept, and is marked, so that no later audit takes the key for deleted, and no
claim waits for its expired event. audit leaves due timers alone: they are the claim's. A contested or parked timer that
waits longer than any can, as by a clock that was ahead, is due at once. If a timer is due within SKEW, its key does not
count as deleted: on the clock of another server, which had the key before, it may have been due.
KEYS    1  the partition's prefix; or none, for many partitions of one server
ARGV    1  the number of timers to look at, roughly
        2  the latest time that this server's clock has shown
        3  the text of losses at a time since which only deletions go unnoticed, or an empty text. While it is the same,
           a missing key was deleted
        4  the earliest time at which the audit began, in ms
        then for each partition its prefix, a cursor, 0 begins, the timer of this page to go on after, or an
        empty text, and 1 if the text of losses holds for the partition, else 0
Returns {the numbers of timers left of those looked at, by app, module and type, as tally has them, then for each
partition, as far as there was room, {next cursor, 0 at the end, timers looked at, rescheduled, cancelled, kept, the
timer to go on after, the apps of this page's timers that are known, each once, 1 if the page was all of the partition,
whose other apps are doubted then (apps.doubt)}, or an empty array if it is not here as a whole, because its slot is
moving}. The timer to go on after is not empty if the payloads were too large for one call: then the same page is to be
audited again from there.
If its reply is lost: the same page again changes nothing more. ]]

-- The greatest time by which the clock of a server that takes over may be behind, in ms.
local SKEW = 2000

-- known_apps returns the known apps of a page. Unknown ones may be among the sharers of the empty name.
local function known_apps(members)
  local seen, names, known = {}, { '' }, {}
  for i = 1, #members, 2 do
    local app = string.match(members[i], '^:[^:]*:([^:]+)') or string.match(members[i], '^[^:]+')
    if app and not seen[app] then
      seen[app] = true
      names[#names + 1] = app
    end
  end
  local since, others = redis.call('ZMSCORE', run.prefix .. 'known', unpack(names)), false
  for i = 2, #names do
    if since[i] then known[#known + 1] = names[i] else others = true end
  end
  if others and since[1] then known[#known + 1] = '' end
  return known
end

-- waits_too_long reports whether a contested or parked member of due waits longer than any can.
local function waits_too_long(member, due)
  local name = string.match(member, '^:([?ds])')
  return name ~= nil and due > clock.due() + (name == 's' and parked.LONGEST_PAUSE or contest.GRACE) + SKEW
end

-- tally_due counts a member of due. Nothing is known yet of a contested timer. A timer that the next claim holds counts
-- as held.
local function tally_due(member, due, is_held)
  local aside, key = '', member
  if string.byte(member) == 58 then aside, key = string.match(member, '^:(s?)%d[^:]*:(.*)$') end
  if not key then return end
  if aside ~= 's' and due > clock.due() then return tally.count(key, tally.PENDING) end
  tally.count(key, is_held and is_held(key, due) and tally.HELD_TIMERS or tally.OWED)
end

-- was_deleted reports whether a client deleted a timer's missing key.
local function was_deleted(t, due)
  if t.unchanged == nil then t.unchanged = t.losses ~= '' and losses.read() == t.losses end
  return t.proves and t.unchanged and due > t.latest
end

-- cancel takes a timer out of the schedule whose key was deleted or has lost its TTL.
local function cancel(t, key)
  repetition.cancel(key)
  t.cancelled = t.cancelled + 1
end

-- audit_absent decides about a timer whose key is gone.
local function audit_absent(t, key, due)
  local record = redis.call('HGET', run.data, key) or 'm:'
  run.spent = run.spent + #record
  if entry.may_be_absent(record) then return end
  if was_deleted(t, due) then return cancel(t, key) end
  index.rewrite(key, entry.add_flag(record, 'u'))
  t.kept = t.kept + 1
end

-- audit_one compares one timer with its key.
local function audit_one(t, key, due)
  local at = ttl.try(key)
  if at == -1 then
    run.spent = run.spent + redis.call('HSTRLEN', run.data, key) / 4 -- to free it
    cancel(t, key)
  elseif at == -2 then
    audit_absent(t, key, due)
  elseif at and at > clock.due() and at ~= due then
    t.rescheduled = t.rescheduled + 1
    trigger.upsert(key, due, at, MAX_PAYLOAD)
  end
end

-- audit_page audits the members of a page from behind one on. It returns the last one looked at if there was no room
-- for more, else an empty text.
local function audit_page(t, members, after)
  local first = 1
  for i = 1, #members, 2 do
    if members[i] == after then first = i + 2 end
  end
  for i = first, #members, 2 do
    if run.spent > BUDGET then return members[i - 2] end
    local key, due = members[i], tonumber(members[i + 1])
    local before = t.cancelled
    if due > clock.due() and string.byte(key) ~= 58 then
      audit_one(t, key, due)
    elseif waits_too_long(key, due) then
      index.redate(key, clock.due_text())
    end
    if t.cancelled == before then tally_due(key, due, t.is_held) end
  end
  return ''
end

-- audit_in audits a page of a partition, and returns its part of the reply.
local function audit_in(t, only, prefix, cursor, after)
  index.enter(prefix)
  local here = redis.pcall('EXISTS', run.due, run.prefix)
  if type(here) ~= 'number' then return only and here or {} end
  t.rescheduled, t.cancelled, t.kept, t.is_held = 0, 0, 0, holds.of(run.data)
  local page = redis.call('ZSCAN', run.due, cursor, 'COUNT', t.count)
  local last, met = audit_page(t, page[2], after), known_apps(page[2])
  local is_all = cursor == '0' and after == '' and page[1] == '0' and last == ''
  if is_all then t.looked = t.looked + select(2, apps.doubt(t.began, met)) end
  return { page[1], #page[2] / 2, t.rescheduled, t.cancelled, t.kept, last, met, is_all and 1 or 0 }
end

function steps.audit(KEYS, ARGV)
  index.begin()
  tally.begin()
  local t = { -- of the call; looked counts the timers, and the apps of whole partitions, looked at so far
    count = ARGV[1], latest = math.max(clock.due(), tonumber(ARGV[2])) + SKEW, losses = ARGV[3],
    began = tonumber(ARGV[4]),
    looked = 0,
  }
  local reply, i = { run.counts }, 5
  while i < #ARGV and run.spent <= BUDGET and t.looked < tonumber(t.count) do
    t.proves = ARGV[i + 3] == '1'
    local part = audit_in(t, KEYS[1], ARGV[i], ARGV[i + 1], ARGV[i + 2])
    if part.err then return part end
    reply[#reply + 1], t.looked = part, t.looked + (part[2] or 0)
    i = i + 4
  end
  return reply
end
