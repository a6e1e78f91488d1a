-- include: scores index owed
-- The firings of a key.

-- How many names of owed and how many claimed firings are looked at to find those of a key. Of
-- long keys it is fewer names: no more than OWED_BYTES of keys, which take about a ms.
local MOST_OWED, OWED_BYTES, MOST_CLAIMED = 1000, 300000, 1000

-- given_refs returns the first refs of a key's firings that may be claimed by nobody.
local function given_refs(key)
  local begin, most = key_prefix(key), math.min(MOST_OWED, math.floor(OWED_BYTES / #key))
  local names = redis.call('ZRANGE', prefix .. 'owed', '[' .. begin, '(' .. #key .. ':' .. key .. ';', 'BYLEX', 'LIMIT', 0, most)
  for i = 1, #names do names[i] = string.sub(names[i], #begin + 1) .. ':' .. key end
  return names
end

-- What is before the key in a ref has fewer bytes than this.
local MOST_BEFORE_KEY = 32

-- claimed_firing returns the ref of a firing of a key that somebody has claimed, and that is
-- wanted, if that is given. Without one it returns nil, and whether all claimed firings were
-- looked at: only then there is none.
local function claimed_firing(key, is_wanted)
  local refs = redis.call('ZRANGE', firing_key, '(0', '(' .. HELD_TEXT, 'BYSCORE', 'LIMIT', 0, MOST_CLAIMED)
  local ending = ':' .. key
  for i = 1, #refs do
    if #refs[i] - #ending < MOST_BEFORE_KEY and string.sub(refs[i], -#ending) == ending and string.match(refs[i], '^%d+:%d*:(.*)$') == key
      and (not is_wanted or is_wanted(refs[i])) then
      return refs[i]
    end
  end
  return nil, #refs < MOST_CLAIMED
end
