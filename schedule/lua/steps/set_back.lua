#!lua flags=allow-oom
--[[ set_back shortens claims and pauses that last longer than any can, as a clock wrote them that was ahead,
and makes tombstones of later than now those of now.
KEYS    1  the partition's prefix
ARGV    1  by how many ms that clock was ahead, at least
        2  how long the longest claim lasts, in ms
        3  how long the longest pause lasts, in ms
        4  how long such claims last from now on, in ms
        5  by how much earlier the timers fire that a resume has spaced, in ms; or an empty text: they stay
        6  how many firings to pass over
        7  how many firings, and how many tombstones, to look at
Returns {firings looked at, how many of them stay, how many others wait no longer, tombstones that were of
later than now, in how many ms the first firing fires that a resume has spaced, or -1}. A firing that waits for its own due time
stays, as a shift may leave it; so does one of a resume that goes on, which spaces it again.
If its reply is lost: again it changes nothing more. A timerd that still has such a claim goes on; its own
lease ends no later than this one. ]]

function steps.set_back(KEYS, ARGV)
  index.open(KEYS[1])
  local by, longest_claim, longest_pause = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
  local claimed_until, earlier = int(run.now + tonumber(ARGV[4])), tonumber(ARGV[5])
  local _, is_held = holds.read(redis.call('HGET', run.data, ':h:') or nil)
  local soonest, first_spaced = nil, -1

  -- is_spaced reports whether a free firing has its time from a resume at a rate that is over.
  local function is_spaced(ref, score)
    local due, key = string.match(ref, '^(%d+):%d*:(.*)$')
    due = tonumber(due)
    return due ~= nil and due ~= math.floor(score) and not (is_held and is_held(key, due))
  end

  -- score_now returns the new score of a firing, or nil if it stays.
  local function score_now(ref, score)
    if score % 1 == 0 then
      return score > run.now + longest_claim + by and claimed_until or nil
    elseif score <= run.now + longest_pause + by then
      return nil
    elseif score % 1 ~= FREED then
      return scores.at(run.now, score % 1)
    elseif is_spaced(ref, score) then
      if earlier then return scores.at(math.max(score - earlier, run.now), FREED) end
      if first_spaced == -1 then first_spaced = math.floor(score) - run.now end
    end
  end

  local after = '(' .. int(run.now + math.max(longest_claim, longest_pause) + by)
  local listed = redis.call('ZRANGE', run.firing, after, '(' .. HELD_TEXT, 'BYSCORE', 'LIMIT', ARGV[6], ARGV[7], 'WITHSCORES')
  local changed = {}
  for i = 1, #listed, 2 do
    local score = score_now(listed[i], tonumber(listed[i + 1]))
    if score then
      changed[#changed + 1], changed[#changed + 2] = score, listed[i]
      soonest = math.min(soonest or math.huge, math.floor(tonumber(score)))
    end
  end
  if #changed > 0 then redis.call('ZADD', run.firing, unpack(changed)) end

  local tombstones = redis.call('ZRANGE', run.fired, '(' .. int(run.now + clock.REMEMBER + by), '+inf', 'BYSCORE', 'LIMIT', 0, ARGV[7])
  local dated = {}
  for i = 1, #tombstones do
    dated[2 * i - 1] = string.find(tombstones[i], '^:i:') and int(run.now + clock.REMEMBER) or run.now_text
    dated[2 * i] = tombstones[i]
  end
  if #dated > 0 then redis.call('ZADD', run.fired, unpack(dated)) end
  if soonest then wake.at(soonest) end
  return { #listed / 2, (#listed - #changed) / 2, #changed / 2, #tombstones, first_spaced }
end
