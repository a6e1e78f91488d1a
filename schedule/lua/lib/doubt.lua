-- include: clock index
-- doubt_apps doubts the apps that a partition knows and an audit that began at began has not met, or forgets those
-- doubted before. It returns how many were forgotten, and how many it knew.
local function doubt_apps(began, met)
  local is_met = {}
  for i = 1, #met do is_met[met[i]] = true end
  local known_key = prefix .. 'known'
  local known = redis.call('ZRANGE', known_key, 0, -1, 'WITHSCORES')
  local scores, forgotten = {}, {}
  for i = 1, #known, 2 do
    local app, since = known[i], tonumber(known[i + 1])
    local score
    if is_met[app] then
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
  return #forgotten, #known / 2
end
