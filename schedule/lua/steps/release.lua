#!lua flags=allow-oom
--[[ release gives claims back, so that anybody may claim them again, at once or after a pause. A firing that was
claimed again meanwhile stays as it is. Its score tells from then on why it waits (scores.lua). A firing that a resume
has freed, or that had a pause, stays so.
KEYS    1  the partition's prefix
ARGV    for each firing its ref, the end of the lease that it was claimed under, how long
        nobody is to claim it, in ms, 0 for not at all, then 1 if its event may be
        stored, 1 if NATS refused it or 2 if its guard cannot be read, and 1 if its claim said "f"; else 0
Returns the number of firings given back.
If its reply is lost: again it changes nothing, as nothing has that lease any more. ]]

function steps.release(KEYS, ARGV)
  index.open(KEYS[1])
  local refs, released = {}, 0
  for i = 1, #ARGV, 6 do
    local pause, stored = tonumber(ARGV[i + 2]), ARGV[i + 3] == '1'
    if tonumber(redis.call('ZSCORE', run.firing, ARGV[i]) or nil) == tonumber(ARGV[i + 1]) then
      local before = pause > 0 and clock.due() + pause or 0
      local why = stored and PERHAPS or pause > 0 and PAUSED or ARGV[i + 5] == '1' and FREED or 0
      index.rescore({ scores.at(before, why), ARGV[i] })
      if ARGV[i + 4] ~= '0' then
        local sign = ARGV[i + 4] == '2' and '-' or ''
        redis.call('ZADD', run.prefix .. 'refused', sign .. string.match(ARGV[i], '^%d+'), ARGV[i])
      end
      released = released + 1
      refs[released] = ARGV[i]
    end
  end
  if released > 0 then owing.list(refs) end
  return released
end
