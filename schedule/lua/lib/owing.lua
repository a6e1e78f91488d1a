-- Firings that nobody has claimed are in the sorted set owed too, as retries are in beside: names of score 0, <length
-- of key>:<key>:<due>:<attempt>. So the firings of one key are a range. A name may be left over: readers look at the
-- firing, too.

-- owing.key_prefix returns the beginning of a key's names in beside and in owed.
function owing.key_prefix(key) return #key .. ':' .. key .. ':' end

-- of_key returns names of a key in beside or in owed, from a place on, and at most count.
function owing.of_key(set, key, first, count)
  local from, to = '[' .. owing.key_prefix(key), '(' .. #key .. ':' .. key .. ';'
  return redis.call('ZRANGE', run.prefix .. set, from, to, 'BYLEX', 'LIMIT', first, count)
end

-- owed_name returns the name of a firing in owed.
local function owed_name(ref)
  local due, attempt, key = string.match(ref, '^(%d+):(%d*):(.*)$')
  return key and owing.key_prefix(key) .. due .. ':' .. attempt or ref
end

-- owing.list notes that firings are owed. has_records says that each ref has its record behind it.
function owing.list(refs, has_records)
  local names = {}
  for i = 1, #refs, has_records and 2 or 1 do
    names[#names + 1], names[#names + 2] = '0', owed_name(refs[i])
  end
  redis.call('ZADD', run.prefix .. 'owed', unpack(names))
end

-- owing.unlist notes that firings are not owed any more.
function owing.unlist(refs)
  local names = {}
  for i = 1, #refs do names[i] = owed_name(refs[i]) end
  redis.call('ZREM', run.prefix .. 'owed', unpack(names))
end
