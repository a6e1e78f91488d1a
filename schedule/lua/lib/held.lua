-- Limits of one step of a resume: the held timers, about their bytes, and the timers read at a time, as the lengths of
-- keys are unknown before.
local MOST_LOOKED, MOST_LOOKED_BYTES, HELD_SLICE = 1000, 65536, 64

-- The number of a rival's arguments: app, module and type of its namespace, empty for any, its cutoff (timers due later
-- are owed at once), and 1 if its namespace is the narrower one, else 0. A rival is another resume that may cover the
-- same timers.
local RIVAL_ARGUMENTS = 5

-- is_rivals reports whether a rival releases a timer: the one whose cutoff includes it; of two or none, the one with
-- the narrower namespace.
local function is_rivals(ARGV, first_rival, a, m, t, due, cutoff)
  for i = first_rival, #ARGV, RIVAL_ARGUMENTS do
    local app, module, typ = ARGV[i], ARGV[i + 1], ARGV[i + 2]
    if (app == '' or app == a) and (module == '' or module == m) and (typ == '' or typ == t) then
      local theirs = due <= tonumber(ARGV[i + 3])
      if theirs ~= (due <= cutoff) then
        if theirs then return true end
      elseif ARGV[i + 4] == '1' then
        return true
      end
    end
  end
  return false
end

-- held.find returns the refs of held timers of a namespace that no other hold covers, most at most, by due time; then
-- the place to go on: the score of the last timer looked at, the number of timers of that score passed over, which
-- stay, and whether it was the last of all; then the number of timers due until the cutoff that other holds cover.
-- score and skip are from such an answer; 0 and 0 begin. An empty part of the namespace stands for any. A hold that is
-- being resumed covers nothing. The rivals begin at ARGV[first_rival]. Timers that wait in a restored Redis count as
-- kept by another hold.
function held.find(ARGV, first_rival, app, module, typ, score, skip, most, cutoff)
  local is_held, waits_until = holds.of(run.data), waiting.till()
  local from = redis.call('ZCOUNT', run.firing, '-inf', '(' .. int(math.max(score, HELD))) + skip
  local refs, bytes, kept = {}, 0, 0
  for first = 0, MOST_LOOKED - 1, HELD_SLICE do
    local listed = redis.call('ZRANGE', run.firing, from + first, from + first + HELD_SLICE - 1, 'WITHSCORES')
    for i = 1, #listed, 2 do
      if #refs == most then return refs, score, skip, false, kept end
      local at = tonumber(listed[i + 1])
      if at ~= score then score, skip = at, 0 end
      local key = string.match(listed[i], '^%d+:%d*:(.*)$') or ''
      local a, m, t = string.match(key, '^([^:]*):([^:]*):([^:]*):')
      local due = at - HELD
      if not a or app ~= '' and app ~= a or module ~= '' and module ~= m or typ ~= '' and typ ~= t then
        skip = skip + 1
      elseif due <= waits_until or is_held and is_held(key, math.huge) then -- which lies within no resume
        skip = skip + 1
        if due <= cutoff then kept = kept + 1 end
      elseif is_rivals(ARGV, first_rival, a, m, t, due, cutoff) then
        skip = skip + 1
      else
        refs[#refs + 1] = listed[i]
      end
      bytes = bytes + #listed[i]
    end
    if #listed < 2 * HELD_SLICE then return refs, score, skip, true, kept end
    if bytes > MOST_LOOKED_BYTES then break end
  end
  return refs, score, skip, false, kept
end
