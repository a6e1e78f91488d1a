#!lua flags=allow-oom
-- include: clock index
--[[ doubt_apps forgets apps without timers after an audit of all timers of a partition. An
app that the audit has not met is doubted at first. When the next audit does not meet it
either, and nobody has set a timer of it since, it is forgotten: whatever was set before
the doubt and waits still, that audit has met.
KEYS    1  the partition's prefix
ARGV    1  when the audit began at the earliest, in ms
        then the apps that it has met
Returns how many apps were forgotten.
If its reply is lost: again it changes nothing more. ]]
open(KEYS[1])
local began, met = tonumber(ARGV[1]), {}
for i = 2, #ARGV do met[ARGV[i]] = true end
local known_key = prefix .. 'known'
local known = redis.call('ZRANGE', known_key, 0, -1, 'WITHSCORES')
local scores, forgotten = {}, {}
for i = 1, #known, 2 do
  local app, since = known[i], tonumber(known[i + 1])
  local score
  if met[app] then
    if since < 0 then score = -since end
  elseif since < 0 then
    if -since < began then forgotten[#forgotten + 1] = app end
  elseif since < began then
    score = -now
  end
  if score then scores[#scores + 1], scores[#scores + 2] = int(score), app end
end
if #scores > 0 then redis.call('ZADD', known_key, unpack(scores)) end
if #forgotten > 0 then redis.call('ZREM', known_key, unpack(forgotten)) end
return #forgotten
