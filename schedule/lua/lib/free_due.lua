-- include: clock index common fire beside
-- free_due returns the first due time from one on that no other firing of a key has that is attempt
-- 1, as far as is known: so a timer that fires as attempt 1 again has an id of its own.
local function free_due(key, due)
  local to_come, step = { [pending(key) or 0] = true }, 1
  for _, contested in ipairs({ ':?:', ':d:' }) do
    local about = redis.call('HGET', data_key, contested .. key) or ''
    to_come[tonumber(string.match(about, '^%d+') or 0)] = true
  end
  while to_come[due] or redis.call('ZSCORE', fired_key, ':i:' .. int(due) .. ':' .. key)
    or redis.call('ZSCORE', firing_key, int(due) .. '::' .. key) or redis.call('ZSCORE', firing_key, int(due) .. ':1:' .. key) do
    due, step = due + step, 2 * step
  end
  return due
end

-- fire_retry is fire for a retry. The id of an event does not contain a ref: it is made
-- of the key, the due time and the attempt, and a payload may have stated the attempt.
-- So the retry moves back from the due time of any firing that may have its attempt.
local function fire_retry(key, due, record, lease_end)
  local at, tries = due, 0
  while pending(key) == at or redis.call('ZSCORE', firing_key, int(at) .. '::' .. key)
    or redis.call('ZSCORE', fired_key, ':i:' .. int(at) .. ':' .. key) do
    tries = tries + 1
    at = due - jump(tries)
  end
  return fire(key, at, record, lease_end)
end
