#!lua flags=allow-oom
--[[ advance moves the virtual clock forward and looks for open firings. It is a script that only timerd dev --virtual
loads.
KEYS    1  the partition's prefix
ARGV    1  the time that the clock is to show, in unix ms; one that has passed moves nothing
        2  the greatest number of open firings to name
Returns {the virtual time in ms; the number of due timers; the number of firings claimed, owed or given back; the next
time of a claim, or -1; the first time at which a firing released for later by a resume may be claimed, or -1; 1 if
there is a list of holds, else 0; 1 if timers of a restored Redis wait, else 0; the keys of some that are due or
firing}.
If its reply is lost: again it moves nothing more. ]]

-- The number of firings that one call looks at.
local MOST_LOOKED = 1000

-- sooner returns the earlier of two times; -1 stands for none.
local function sooner(one, other) return one == -1 and other or other == -1 and one or math.min(one, other) end

-- look_at_firings returns the number of open firings and the time of the first one released for later, or -1, and adds
-- the keys of some to names.
local function look_at_firings(names, most)
  local listed = redis.call('ZRANGE', run.firing, '-inf', '(' .. HELD_TEXT, 'BYSCORE', 'LIMIT', 0, MOST_LOOKED,
    'WITHSCORES')
  local open, released = 0, -1
  for i = 1, #listed, 2 do
    local at = tonumber(listed[i + 1])
    if at % 1 == FREED and at > clock.due() then
      released = sooner(released, math.ceil(at))
    else
      open = open + 1
      if #names < most then names[#names + 1] = string.match(listed[i], '^%d+:%d*:(.*)$') or listed[i] end
    end
  end
  return open, released
end

-- waits reports whether timers of a restored Redis may wait to be compared with the streams.
local function waits()
  local till = waiting.till()
  if till < 0 then return false end
  local head = index.head()
  return head ~= -1 and head <= till or redis.call('EXISTS', run.firing) == 1
end

index.open(KEYS[1])
local ahead = tonumber(ARGV[1]) - clock.real()
if tonumber(ARGV[1]) > clock.due() then
  redis.call('SET', clock.AHEAD, int(ahead))
  index.open(KEYS[1])
  wake.at(0)
end
local names = redis.call('ZRANGE', run.due, '-inf', clock.due_text(), 'BYSCORE', 'LIMIT', 0, ARGV[2])
local due = redis.call('ZCOUNT', run.due, '-inf', clock.due_text())
local open, released = look_at_firings(names, tonumber(ARGV[2]))
local first = redis.call('ZRANGE', run.due, '(' .. clock.due_text(), '+inf', 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')
local next_due = sooner(tonumber(first[2] or -1), released)
return { clock.due(), due, open, next_due, released, redis.call('HEXISTS', run.data, ':h:'),
  waits() and 1 or 0, names }
