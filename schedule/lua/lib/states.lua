-- Limit of the owed firings cancelled by one call: it takes 3 ms with the largest payloads.
local MOST_CANCELLED = 300

-- waits reports whether a firing waits because Redis was restored (restored.lua): no hold covers it.
local function waits(ref)
  local due, key = string.match(ref, '^(%d+):%d*:(.*)$')
  if not key or tonumber(due) > waiting.till() then return false end
  local is_held = holds.of(run.data)
  return not is_held or not is_held(key, tonumber(due))
end

-- states.of returns the state of a firing that is not settled, or nil; whether somebody has claimed it; and its score.
function states.of(ref)
  local score = tonumber(redis.call('ZSCORE', run.firing, ref) or nil)
  if not score then return nil end
  if score >= HELD and waits(ref) then return 'owed', false, score end
  return score >= HELD and 'held' or scores.is_free(score) and 'owed' or 'firing', not scores.is_unclaimed(score), score
end

local function holds_nothing() return false end

-- holding returns a function that reports whether the next claim holds a timer, by its key and its due time.
function states.holding() return holds.of(run.data) or holds_nothing end

-- states.first_unclaimed returns the ref and state of a key's first held firing, else its first owed one, else one that
-- was given back though perhaps published; or nil. An owed one is held if the next claim holds it.
function states.first_unclaimed(key)
  local refs, owed, given, is_held = firings.given(key), nil, nil, nil
  for i = 1, #refs do
    local state, claimed, score = states.of(refs[i])
    if state == 'owed' then
      is_held = is_held or states.holding()
      if is_held(key, scores.due_of_free(refs[i], score)) then state = 'held' end
    end
    if state == 'held' then return refs[i], state end
    if state == 'owed' then owed = owed or refs[i] end
    if state == 'firing' and not claimed then given = given or refs[i] end
  end
  return owed or given, owed and 'owed' or given and 'firing' or nil
end

-- end_with ends the repetition of a key if its occurrence is among cancelled firings: nothing else would continue it. A
-- client's own pending timer stays. The occurrence is among the last ones, so no more payload is read than a call may
-- read.
local function end_with(refs, key)
  local serial = redis.call('ZSCORE', run.prefix .. 'repeat', key)
  if not serial or entry.is_occurrence_of(redis.call('HGET', run.data, key) or 'm:', serial) then return end
  local i, read = #refs, 0
  while i > 0 and read <= BUDGET do
    local record = redis.call('HGET', run.firingdata, refs[i]) or 'm:'
    if entry.is_occurrence_of(record, serial) then
      return repetition.finish(key, tonumber(serial), account.CANCELLED)
    end
    i, read = i - 1, read + #record
  end
end

-- states.cancel_owed cancels the held and owed ones of refs, the result of firings.given for a key, if they were due
-- within some time. It returns their number, whether there are more, and whether perhaps published ones stay.
function states.cancel_owed(key, refs, earliest, latest)
  local owed, done, more, given = {}, {}, false, false
  for i = 1, #refs do
    local state, claimed = states.of(refs[i])
    local stays = state == 'firing' and not claimed
    if state == 'held' or state == 'owed' then
      local due = tonumber(string.match(refs[i], '^%d+') or 0)
      stays = due > latest or due < earliest
      if not stays then
        more = #owed == MOST_CANCELLED
        if more then break end
        owed[#owed + 1] = refs[i]
      end
    elseif stays then
      given = true
    else
      done[#done + 1] = refs[i]
    end
  end
  if #owed > 0 then
    end_with(owed, key)
    index.end_firings(owed, true, account.CANCELLED)
  end
  if #done > 0 then owing.unlist(done) end
  return #owed, more, given
end

-- states.first_beside returns the first pending timer beside a key's own, or else the first due one: its member, its
-- due time and its state; or nil. A timer that was set aside is due.
function states.first_beside(key)
  local members, late, late_due = beside.members(key, 0, beside.MOST), nil, nil
  for i = 1, #members do
    local due = tonumber(string.match(members[i], '^:s?(%d+)'))
    if due > clock.due() then return members[i], due, 'pending' end
    if not late or due < late_due then late, late_due = members[i], due end
  end
  return late, late_due, late and 'owed'
end
