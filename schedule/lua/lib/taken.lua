-- include: clock index common owed fire
-- is_taken tells whether another timer of the key has, or may have had, the id of one that is due
-- at a time: one that fires or has fired, or that waits. own_stays says that the key's own timer is another.
local function is_taken(key, due, attempt, own_stays)
  local text = int(due)
  if redis.call('ZSCORE', fired_key, ':i:' .. text .. ':' .. key) or due == now and age(key) == 0 then return true end
  for _, other in ipairs({ '', '1', attempt }) do
    if redis.call('ZSCORE', firing_key, text .. ':' .. other .. ':' .. key) then return true end
  end
  for _, kind in ipairs({ '', 's' }) do
    local begin = key_prefix(key) .. kind .. text
    if redis.call('ZRANGE', prefix .. 'beside', '[' .. begin .. '.', '(' .. begin .. '/', 'BYLEX', 'LIMIT', 0, 1)[1] then return true end
  end
  return own_stays and pending(key) == due
end
