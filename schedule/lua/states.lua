-- How many names of owed and how many claimed firings are looked at to find those of a key.
local MOST_OWED, MOST_CLAIMED = 1000, 1000

-- At most so many owed firings are cancelled by one call: it takes a few milliseconds if
-- their payloads are of the largest size.
local MOST_CANCELLED = 100

-- owed_refs returns refs of a key's firings that may be owed, from a place on.
local function owed_refs(key, first, count)
  local begin = key_prefix(key)
  local names = redis.call('ZRANGE', prefix .. 'owed', '[' .. begin, '(' .. #key .. ':' .. key .. ';', 'BYLEX', 'LIMIT', first, count)
  for i = 1, #names do names[i] = string.sub(names[i], #begin + 1) .. ':' .. key end
  return names
end

-- is_owed tells whether nobody has claimed a firing. unpublished says that nobody can have
-- published it either.
local function is_owed(ref)
  local score = tonumber(redis.call('ZSCORE', firing_key, ref) or nil)
  local owed = score ~= nil and (score == 0 or score % 1 ~= 0)
  return owed, owed and score % 1 ~= 0.75
end

-- first_owed returns the ref of a key's first owed firing, or nil.
local function first_owed(key)
  local refs = owed_refs(key, 0, MOST_OWED)
  for i = 1, #refs do
    if is_owed(refs[i]) then return refs[i] end
  end
end

-- cancel_owed cancels a key's owed firings that were due at a time at the latest, but for
-- those that may have been published. It returns how many, and whether there are more.
local function cancel_owed(key, latest)
  local refs, cancelled = owed_refs(key, 0, MOST_OWED), 0
  for i = 1, #refs do
    local owed, unpublished = true, false
    if tonumber(string.match(refs[i], '^%d+') or 0) <= latest then owed, unpublished = is_owed(refs[i]) end
    if unpublished then
      if cancelled == MOST_CANCELLED then return cancelled, true end
      redis.call('ZREM', firing_key, refs[i])
      redis.call('ZREM', prefix .. 'refused', refs[i])
      redis.call('HDEL', firingdata_key, refs[i])
      cancelled = cancelled + 1
    end
    if unpublished or not owed then unlist_owed(prefix, { refs[i] }) end
  end
  return cancelled, false
end

-- claimed_firing returns the ref of a firing of a key that somebody has claimed. Without
-- one it returns nil, and whether all claimed firings were looked at: only then there is
-- none.
local function claimed_firing(key)
  local refs = redis.call('ZRANGE', firing_key, '(0', '+inf', 'BYSCORE', 'LIMIT', 0, MOST_CLAIMED)
  local ending = ':' .. key
  for i = 1, #refs do
    if string.sub(refs[i], -#ending) == ending and string.match(refs[i], '^%d+:%d*:(.*)$') == key then return refs[i] end
  end
  return nil, #refs < MOST_CLAIMED
end
