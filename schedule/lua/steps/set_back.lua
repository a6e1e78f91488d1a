#!lua flags=allow-oom
--[[ set_back shortens claims and pauses that a clock that was ahead has made too long, and dates tombstones later than
now back to now.
KEYS    1  the partition's prefix
ARGV    1  the least time by which that clock was ahead, in ms
        2  the longest time of a claim, in ms
        3  the longest pause, in ms
        4  the time from now after which such claims end, in ms
        5  the time by which timers spaced by a resume fire earlier, in ms; or an empty text: they stay
        6  the number of firings to pass over
        7  the number of firings to look at, and of tombstones
Returns {the number of firings looked at, of those among them that stay, of the others that wait no longer, of
tombstones that were of later than now, and the time until the first firing spaced by a resume, in ms, or -1}. A firing
that waits for its own due time stays, as a shift may leave it; so does one of a resume that goes on, which spaces it
again.
If its reply is lost: again it changes nothing more. A timerd that still has such a claim goes on; its own lease ends no
later than this one. ]]

-- is_spaced reports whether a free firing has its time from a resume at a rate that is over.
local function is_spaced(ref, score)
  local due, key = string.match(ref, '^(%d+):%d*:(.*)$')
  due = tonumber(due)
  local is_held = holds.of(run.data)
  return due ~= nil and due ~= math.floor(score) and not (is_held and is_held(key, due))
end

-- score_now returns the new score of a firing, or nil if it stays.
local function score_now(t, ref, score)
  local now = clock.due()
  if score % 1 == 0 then
    return score > now + t.longest_claim + t.by and t.claimed_until or nil
  elseif score <= now + t.longest_pause + t.by then
    return nil
  elseif score % 1 ~= FREED then
    return scores.at(now, score % 1)
  elseif is_spaced(ref, score) then
    if t.earlier then return scores.at(math.max(score - t.earlier, now), FREED) end
    if t.first_spaced == -1 then t.first_spaced = math.floor(score) - now end
  end
end

-- rescore gives firings their new scores. It returns the numbers looked at and changed, and the time of the first
-- changed one.
local function rescore(t, passed, most)
  local after = '(' .. int(clock.due() + math.max(t.longest_claim, t.longest_pause) + t.by)
  local listed = redis.call('ZRANGE', run.firing, after, '(' .. HELD_TEXT, 'BYSCORE', 'LIMIT', passed, most,
    'WITHSCORES')
  local changed, soonest = {}, nil
  for i = 1, #listed, 2 do
    local score = score_now(t, listed[i], tonumber(listed[i + 1]))
    if score then
      changed[#changed + 1], changed[#changed + 2] = score, listed[i]
      soonest = math.min(soonest or math.huge, math.floor(tonumber(score)))
    end
  end
  if #changed > 0 then index.rescore(changed) end
  return #listed / 2, #changed / 2, soonest
end

-- date_tombstones dates tombstones later than now back to now, and returns their number.
local function date_tombstones(by, most)
  local later = '(' .. int(clock.real() + clock.REMEMBER + by)
  local tombstones, dated = redis.call('ZRANGE', run.fired, later, '+inf', 'BYSCORE', 'LIMIT', 0, most), {}
  for i = 1, #tombstones do
    dated[2 * i - 1] = string.find(tombstones[i], '^:i:') and int(clock.real() + clock.REMEMBER) or clock.real_text()
    dated[2 * i] = tombstones[i]
  end
  if #dated > 0 then redis.call('ZADD', run.fired, unpack(dated)) end
  return #tombstones
end

function steps.set_back(KEYS, ARGV)
  index.open(KEYS[1])
  local t = {
    by = tonumber(ARGV[1]), longest_claim = tonumber(ARGV[2]), longest_pause = tonumber(ARGV[3]),
    claimed_until = int(clock.due() + tonumber(ARGV[4])), earlier = tonumber(ARGV[5]), first_spaced = -1,
  }
  local looked, changed, soonest = rescore(t, ARGV[6], ARGV[7])
  local dated = date_tombstones(t.by, ARGV[7])
  if soonest then wake.at(soonest) end
  return { looked, looked - changed, changed, dated, t.first_spaced }
end
