#!lua flags=allow-oom
-- include: limits clock index hold common budget payload losses tally contest parked
--[[ audit compares one page of the index with the keys. Pending timers whose key was
deleted or lost its TTL are cancelled; those whose TTL changed are rescheduled. A timer
whose key is gone for a reason that nobody knows is kept, and is marked, so that no later
audit takes the key for deleted, and no claim waits for its expired event. audit leaves alone what
is due already: that is the claim's. A contested or parked timer that waits longer than any can, as by
a clock that was ahead, is due at once. Nor does it take the key of a timer for deleted that is due
within SKEW: on the clock of another server, which had the key before, it may have been due.
KEYS    1  the partition's prefix
ARGV    1  cursor; 0 begins
        2  how many timers to look at, roughly
        3  the text of losses at a time from which on nothing but a deletion goes
           unnoticed, or an empty one if there is no such time. While it is the same
           still, a key that is gone was deleted.
        4  the latest time that this server's clock has shown
        5  the timer of this page to go on after, or an empty text
Returns {next cursor, 0 at the end, timers looked at, rescheduled, cancelled, kept, the
timer to go on after, the apps of this page's timers that are known, each once, how many
timers are left of those looked at by app, module and type, as tally has them}. The timer
to go on after is not empty if the payloads were too large for one call: then the same
page is to be audited again from there.
If its reply is lost: the same page again changes nothing more. ]]

-- By how much the clock of a server that takes over may be behind, in ms.
local SKEW = 2000

-- known_apps returns the apps of a page that are known. Unknown ones may be among those
-- that share the empty name.
local function known_apps(members)
  local seen, apps, known = {}, { '' }, {}
  for i = 1, #members, 2 do
    local app = string.match(members[i], '^:[^:]*:([^:]+)') or string.match(members[i], '^[^:]+')
    if app and not seen[app] then
      seen[app] = true
      apps[#apps + 1] = app
    end
  end
  local since, others = redis.call('ZMSCORE', prefix .. 'known', unpack(apps)), false
  for i = 2, #apps do
    if since[i] then known[#known + 1] = apps[i] else others = true end
  end
  if others and since[1] then known[#known + 1] = '' end
  return known
end

open(KEYS[1])
local page = redis.call('ZSCAN', due_key, ARGV[1], 'COUNT', ARGV[2])
local members, rescheduled, cancelled, kept, last = page[2], 0, 0, 0, ''
local latest = math.max(now, tonumber(ARGV[4])) + SKEW

-- was_deleted tells whether the key of a timer that is gone was deleted by a client.
local unchanged
local function was_deleted(due)
  if unchanged == nil then unchanged = ARGV[3] ~= '' and losses() == ARGV[3] end
  return unchanged and due > latest
end

-- audit_absent decides about a timer whose key is gone.
local function audit_absent(key, due)
  local record = redis.call('HGET', data_key, key) or 'm:'
  spent = spent + #record
  if not may_be_absent(record) then
    if was_deleted(due) then
      cancel_pending(key)
      cancelled = cancelled + 1
    else
      redis.call('HSET', data_key, key, add_flag(record, 'u'))
      kept = kept + 1
    end
  end
end

-- audit_one compares one timer with its key.
local function audit_one(key, due)
  local at = expiry(key)
  if at == -1 then
    spent = spent + redis.call('HSTRLEN', data_key, key) / 4 -- to free it
    cancel_pending(key)
    cancelled = cancelled + 1
  elseif at == -2 then
    audit_absent(key, due)
  elseif at and at > now and at ~= due then
    rescheduled = rescheduled + 1
    upsert(key, due, at, MAX_PAYLOAD)
  end
end

-- tally_due counts a member of due. Nothing is known yet of a contested timer. What the next
-- claim holds is held.
local _, is_held = read_holds(redis.call('HGET', data_key, ':h:') or nil)
local function tally_due(member, due)
  local aside, key = '', member
  if string.byte(member) == 58 then aside, key = string.match(member, '^:(s?)%d[^:]*:(.*)$') end
  if not key then return end
  if aside ~= 's' and due > now then return tally(key, PENDING) end
  tally(key, is_held and is_held(key, due) and HELD_TIMERS or OWED)
end

-- waits_too_long reports whether a contested or parked member of due waits longer than any can.
local function waits_too_long(member, due)
  local name = string.match(member, '^:([?ds])')
  return name ~= nil and due > now + (name == 's' and LONGEST_PAUSE or GRACE) + SKEW
end

local first = 1
for i = 1, #members, 2 do
  if members[i] == ARGV[5] then first = i + 2 end
end
for i = first, #members, 2 do
  if spent > BUDGET then
    last = members[i - 2]
    break
  end
  local key, due = members[i], tonumber(members[i + 1])
  local before = cancelled
  if due > now and string.byte(key) ~= 58 then
    audit_one(key, due)
  elseif waits_too_long(key, due) then
    redis.call('ZADD', due_key, now_text, key)
  end
  if cancelled == before then tally_due(key, due) end
end
return { page[1], #members / 2, rescheduled, cancelled, kept, last, known_apps(members), counts }
