#!lua flags=allow-oom,allow-cross-slot-keys,no-writes
--[[ overdue counts the timers of many partitions of one server that have been due for long and are not settled.
It reads due and firing themselves, and writes nothing.
ARGV    1  the least age since the due time, in ms
     2, 3  for a single partition the number of entries of due and of firing that earlier calls read, else 0. -1 for
           due: all were counted
        then the hash tags of the partitions
Returns {this server's clock in unix ms, the number of overdue timers, the earliest due time of them, or -1, its key,
the number of entries due by then, of any kind, the numbers of timers that wait because they are on hold, because they
are set aside, and because a resume gave them a later time, an array with namespaces of some overdue timers, then for
each partition that was not read to its end: its hash tag and the next ARGV 2 and 3}. Without holds, due is counted
without being read. A timer whose resume is under way counts as given a later time. ]]
index.begin()
look.begin()
local limit = clock.due() - tonumber(ARGV[1])
local overdue, first, first_key, entries, held, parked, spaced = 0, -1, '', 0, 0, 0, 0
local namespaces, named = {}, {}
-- Whether this is the first call for these partitions.
local is_first_visit = ARGV[2] == '0' and ARGV[3] == '0'
-- The limit of namespaces that a call names.
local MOST_NAMED = 10

-- note_first notes an overdue timer.
local function note_first(due, key)
  if first < 0 or due < first then first, first_key = due, key end
  local namespace = string.match(key, '^[^:]*:[^:]*:[^:]*')
  if namespace and not named[namespace] and #namespaces < MOST_NAMED then
    named[namespace], namespaces[#namespaces + 1] = true, namespace
  end
end

-- walk visits the entries of a sorted set up to a score, after the first ones, while there is room. It returns the
-- number visited in all, and whether these are all.
local function walk(name, to, skip, visit)
  while run.names_left > 0 and run.bytes_left > 0 do
    local listed = redis.call('ZRANGE', name, '-inf', to, 'BYSCORE', 'LIMIT', skip, look.SLICE, 'WITHSCORES')
    for i = 1, #listed, 2 do
      visit(listed[i], tonumber(listed[i + 1]))
      run.bytes_left = run.bytes_left - #listed[i]
    end
    skip, run.names_left = skip + #listed / 2, run.names_left - #listed / 2
    if #listed < 2 * look.SLICE then return skip, true end
  end
  return skip, false
end

-- count_due counts the entries of due. Timers set aside have their next look there, and are counted in aside.
local function count_due(due_key, is_held, skip)
  if skip < 0 then return skip, true end
  local late = redis.call('ZCOUNT', due_key, '-inf', int(limit))
  if is_first_visit then entries = entries + late end
  local function visit(member, due)
    local key = string.match(member, '^:[^:]*:(.*)$') or member
    if is_held and is_held(key, due) then
      held = held + 1
      return
    elseif string.sub(member, 1, 2) == ':s' then
      overdue = is_held and overdue or overdue - 1
      return
    end
    if is_held then overdue = overdue + 1 end
    note_first(due, key)
  end
  if is_held then return walk(due_key, int(limit), skip, visit) end
  overdue = overdue + late
  local listed, n = look.at(due_key, '-inf', int(limit), look.SLICE)
  for i = 1, 2 * n, 2 do visit(listed[i], tonumber(listed[i + 1])) end
  return -1, true
end

-- count_firing counts the entries of firing, whose scores are no due times.
local function count_firing(prefix, is_held, skip)
  local firing_key = prefix .. 'firing'
  local refuses = redis.call('EXISTS', prefix .. 'refused') == 1
  if is_first_visit then
    local still = redis.call('ZCOUNT', firing_key, HELD_TEXT, '+inf')
    held, entries = held + still, entries + redis.call('ZCARD', firing_key) - still
  end
  return walk(firing_key, '(' .. HELD_TEXT, skip, function(ref, score)
    local due, attempt, key = string.match(ref, '^(%d+):(%d*):(.*)$')
    due = tonumber(due)
    if not due or attempt == '0' or due > limit then return end
    local later = score >= 1 and score % 1 == FREED and math.floor(score) or due
    -- A hold that is over but for its resume covers timers up to its cutoff, any other one all timers.
    local resumed = is_held and is_held(key, due) and not is_held(key, math.huge)
    if refuses and redis.call('ZSCORE', prefix .. 'refused', ref) then
      parked = parked + 1
    elseif scores.is_free(score) and is_held and is_held(key, scores.due_of_free(ref, score)) then
      held = held + 1
    elseif later > limit or resumed then
      spaced = spaced + 1
    else
      overdue = overdue + 1
      note_first(later, key)
    end
  end)
end

local out = { clock.due(), 0, 0, 0, 0, 0, 0, 0, 0 }
for i = 4, #ARGV do
  local prefix = PREFIX .. ARGV[i] .. SUFFIX -- never exists, see index.lua
  local here = redis.pcall('EXISTS', prefix .. 'due', prefix .. 'firing', prefix)
  if type(here) ~= 'table' and here > 0 and (run.names_left <= 0 or run.bytes_left <= 0) then
    out[#out + 1], out[#out + 2], out[#out + 3] = ARGV[i], tonumber(ARGV[2]), tonumber(ARGV[3])
  elseif type(here) ~= 'table' and here > 0 then
    local is_held = holds.of(prefix .. 'data')
    if is_first_visit then parked = parked + redis.call('ZCARD', prefix .. 'aside') end
    local due_next, due_all = count_due(prefix .. 'due', is_held, tonumber(ARGV[2]))
    local firing_next, firing_all = count_firing(prefix, is_held, tonumber(ARGV[3]))
    if not due_all or not firing_all then
      out[#out + 1], out[#out + 2], out[#out + 3] = ARGV[i], due_next, firing_next
    end
  end
end
out[2], out[3], out[4], out[5] = overdue, first, first_key, entries
out[6], out[7], out[8], out[9] = held, parked, spaced, namespaces
return out
