-- How many held timers one step of a resume looks at.
local MOST_LOOKED = 1000

-- find_held returns the refs of some held timers of a namespace that no other hold covers, in
-- the order of their dues, most at most, and then from where to go on: the score of the last
-- one that was looked at, how many of that score were passed over and stay, and whether that
-- was the last one. score and skip are from such an answer; 0 and 0 begin. An empty part of
-- the namespace stands for any. A hold that is being resumed covers nothing, unless by_due says
-- that it still covers what its own resume is to release.
local function find_held(app, module, typ, score, skip, most, by_due)
  local _, is_held = read_holds(redis.call('HGET', data_key, ':h:') or nil)
  local from = redis.call('ZCOUNT', firing_key, '-inf', '(' .. int(math.max(score, HELD))) + skip
  local listed, refs = redis.call('ZRANGE', firing_key, from, from + MOST_LOOKED - 1, 'WITHSCORES'), {}
  for i = 1, #listed, 2 do
    if #refs == most then return refs, score, skip, false end
    local at = tonumber(listed[i + 1])
    if at ~= score then score, skip = at, 0 end
    local key = string.match(listed[i], '^%d+:%d*:(.*)$') or ''
    local a, m, t = string.match(key, '^([^:]*):([^:]*):([^:]*):')
    -- An infinite due time lies within no hold that is being resumed.
    local due = by_due and at - HELD or math.huge
    if a and (app == '' or app == a) and (module == '' or module == m) and (typ == '' or typ == t)
      and not (is_held and is_held(key, due)) then
      refs[#refs + 1] = listed[i]
    else
      skip = skip + 1
    end
  end
  return refs, score, skip, #listed < 2 * MOST_LOOKED
end

-- is_current tells whether the partition's copy of the list has a generation.
local function is_current(generation)
  return (read_holds(redis.call('HGET', data_key, ':h:') or nil)) == tonumber(generation)
end
