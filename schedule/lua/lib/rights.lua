-- A function is refused before its first write or not at all. Redis itself refuses a replica, a full disk and a lack of
-- memory before a function begins. It judges the caller's rights at each command, so a function asks for the rights to
-- all its commands first: 0.2 to 0.4 us each.

-- The commands of functions' writes, each with its key of the index.
rights.OF = {
  owing = {
    'ZADD', 'fired', 'ZREM', 'due', 'HDEL', 'data', 'ZADD', 'firing', 'HSET', 'firingdata', 'ZADD', 'owed',
    'HGET', 'data', 'HEXISTS', 'data', 'HSET', 'data', 'HGET', 'firingdata', 'ZSCORE', 'firing',
  },
  know_app = { 'ZADD', 'known', 'HSET', 'data' },
  repeats = { 'ZADD', 'repeat' },
  plan = {
    'ZADD', 'repeat', 'HSET', 'data', 'ZREM', 'due', 'HDEL', 'data', 'HSET', 'firingdata', 'ZADD', 'firing',
    'ZADD', 'owed',
  },
  ending = { 'ZREM', 'repeat', 'ZREM', 'firing', 'ZREM', 'refused', 'ZREM', 'owed', 'HDEL', 'firingdata', 'HSET',
  'data' },
  import = {
    'ZADD', 'due', 'HSET', 'data', 'ZADD', 'firing', 'HSET', 'firingdata', 'ZADD', 'owed', 'ZADD', 'fired',
    'ZADD', 'beside', 'ZADD', 'repeat', 'ZADD', 'known', 'HGET', 'firingdata', 'ZSCORE', 'firing',
  },
  forgetting = { 'ZREM', 'due', 'HDEL', 'data' },
  cancel = { -- more than a pending timer
    'ZADD', 'fired', 'ZREM', 'beside', 'ZREM', 'aside', 'ZREM', 'owed', 'ZREM', 'firing', 'ZREM', 'refused',
    'ZREM', 'repeat', 'HDEL', 'firingdata', 'HGET', 'firingdata', 'ZSCORE', 'firing',
  },
}

-- The fewest arguments of each command behind its key: Redis 8.6 wants them before it judges a right.
local FEWEST = {
  ZADD = { '0', '' }, HSET = { '', '' }, HEXISTS = { '' }, SET = { '' }, ZREM = { '' }, HDEL = { '' }, HGET = { '' },
  ZSCORE = { '' }, DEL = {},
}

-- rights.missing returns an error reply if the caller may not run a command on a key, else nil. name says in the error
-- which key.
function rights.missing(command, key, name)
  if redis.acl_check_cmd(command, key, unpack(FEWEST[command])) then return nil end
  return redis.error_reply('NOPERM timerd: this user may not run ' .. command .. ' on ' .. name
    .. '; nothing was changed. Grant what the user producer in deploy/users.acl may')
end

-- rights.missing_all is rights.missing for a list of RIGHTS.
function rights.missing_all(list)
  for i = 1, #list, 2 do
    local name = run.prefix .. list[i + 1]
    local refusal = rights.missing(list[i], name, name)
    if refusal then return refusal end
  end
end
