-- Firings that nobody has claimed are in the sorted set owed too, as retries are in beside:
-- names of score 0, <length of key>:<key>:<due>:<attempt>. So those of one key are found as
-- a range. A name may be left over: whoever reads it looks at the firing.

-- owing.key_prefix returns what the names of a key in beside and in owed begin with.
function owing.key_prefix(key) return #key .. ':' .. key .. ':' end

-- owed_name returns the name of a firing in owed.
local function owed_name(ref)
  local due, attempt, key = string.match(ref, '^(%d+):(%d*):(.*)$')
  return key and owing.key_prefix(key) .. due .. ':' .. attempt or ref
end

-- owing.list notes that firings are owed. partition_prefix is their partition's.
function owing.list(partition_prefix, refs)
  local names = {}
  for i = 1, #refs do names[2 * i - 1], names[2 * i] = '0', owed_name(refs[i]) end
  redis.call('ZADD', partition_prefix .. 'owed', unpack(names))
end

-- owing.unlist notes that firings are not owed any more.
function owing.unlist(partition_prefix, refs)
  local names = {}
  for i = 1, #refs do names[i] = owed_name(refs[i]) end
  redis.call('ZREM', partition_prefix .. 'owed', unpack(names))
end
