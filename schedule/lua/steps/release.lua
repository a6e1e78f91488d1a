#!lua flags=allow-oom
-- include: scores clock owed score
--[[ release gives claims back, so that anybody may claim them again, at once or after a
pause. A firing that was claimed again meanwhile stays as it is. Its score tells from then on
why it waits (score.lua). What was freed by a resume or had a pause stays so.
KEYS    1  the partition's prefix
ARGV    for each firing its ref, the end of the lease that it was claimed under, how long
        nobody is to claim it, in ms, 0 for not at all, then 1 if its event may be
        stored, 1 if NATS refused it, and 1 if its claim said "f"; else 0
Returns how many were given back.
If its reply is lost: again it changes nothing, as nothing has that lease any more. ]]
local firing_key, now, released = KEYS[1] .. 'firing', read_clock(), 0
local refs = {}
for i = 1, #ARGV, 6 do
  local pause, stored = tonumber(ARGV[i + 2]), ARGV[i + 3] == '1'
  if tonumber(redis.call('ZSCORE', firing_key, ARGV[i]) or nil) == tonumber(ARGV[i + 1]) then
    local before = pause > 0 and now + pause or 0
    local why = stored and PERHAPS or pause > 0 and PAUSED or ARGV[i + 5] == '1' and FREED or 0
    redis.call('ZADD', firing_key, score_at(before, why), ARGV[i])
    if ARGV[i + 4] == '1' then redis.call('ZADD', KEYS[1] .. 'refused', string.match(ARGV[i], '^%d+'), ARGV[i]) end
    released = released + 1
    refs[released] = ARGV[i]
  end
end
if released > 0 then list_owed(KEYS[1], refs) end
return released
