-- The ids of events: key, due time and attempt, which a payload may state. No two firings share one.

-- may_be_shared reports whether another timer of a key may have, or get, the due time of a firing of attempt 1: one
-- that waits beside, or an owed or held one that a resume may shift to it. Only claims ask, by run.beside_others: each
-- firing is claimed at least once.
local function may_be_shared(key, due, attempt)
  if not run.beside_others then return false end
  local begin = owing.key_prefix(key)
  local beside = redis.call('ZMSCORE', run.prefix .. 'beside', begin .. due .. '.', begin .. due .. '.1')
  if beside[1] or beside[2] then return true end
  local names = owing.of_key('owed', key, 0, 2)
  return #names == 2 or #names == 1 and names[1] ~= begin .. due .. ':' .. attempt
end

-- tombstone returns the tombstone that reserves the id of a firing, so that no retry or shifted timer gets it. It
-- returns nil if none could: most retries have attempts above 1, and the others use ids.free_due. Long records are not
-- searched: in some that takes Redis 15 ns a byte.
local MOST_SEARCHED = 1024
function ids.tombstone(key, due, attempt, record)
  local is_first = attempt == '' and #record <= MOST_SEARCHED and not entry.may_state_attempt(record)
  if (is_first or attempt == '1' and not entry.fires_again(record))
    and not may_be_shared(key, due, attempt) then return nil end
  return ':i:' .. due .. ':' .. key
end

-- ids.free_due returns the first due time, from due on, that no other known firing of the key has as attempt 1: so a
-- timer that fires as attempt 1 again has an id of its own.
function ids.free_due(key, due)
  local to_come, step = { [index.pending(key) or 0] = true }, 1
  for _, contested in ipairs({ ':?:', ':d:' }) do
    local about = redis.call('HGET', run.data, contested .. key) or ''
    to_come[tonumber(string.match(about, '^%d+') or 0)] = true
  end
  while to_come[due] or redis.call('ZSCORE', run.fired, ':i:' .. int(due) .. ':' .. key)
    or redis.call('ZSCORE', run.firing, int(due) .. '::' .. key)
    or redis.call('ZSCORE', run.firing, int(due) .. ':1:' .. key) do
    due, step = due + step, 2 * step
  end
  return due
end

-- ids.is_taken reports whether another timer of the key, waiting, firing or fired, has or may have had an id with a due
-- time and attempt. own_stays says that the key's own timer is another.
function ids.is_taken(key, due, attempt, own_stays)
  local text = int(due)
  if redis.call('ZSCORE', run.fired, ':i:' .. text .. ':' .. key) then return true end
  if due == clock.due() and firings.age(key) == 0 then return true end
  local refs = { text .. '::' .. key, text .. ':1:' .. key, text .. ':' .. attempt .. ':' .. key }
  local firing = redis.call('ZMSCORE', run.firing, unpack(refs))
  if firing[1] or firing[2] or firing[3] then return true end
  local waiting, of_key = run.prefix .. 'beside', owing.key_prefix(key)
  if owing.of_key('beside', key, 0, 1)[1] then -- as for few keys
    for _, begin in ipairs({ of_key .. text, of_key .. 's' .. text }) do
      local same = redis.call('ZRANGE', waiting, '[' .. begin .. '.', '(' .. begin .. '/', 'BYLEX', 'LIMIT', 0, 1)
      if same[1] then return true end
    end
  end
  return own_stays and index.pending(key) == due
end
