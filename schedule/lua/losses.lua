-- losses returns a text that changes whenever a key may have vanished although no client
-- deleted it and its time had not come: the server is another one or was started again,
-- keys were evicted, or ran out while data were loaded. A reset of these counts changes it
-- too. The text is empty if the server does not say. Behind it, how many keys ran out.
local function losses()
  local info = redis.pcall('INFO', 'server', 'stats', 'persistence', 'commandstats')
  if type(info) ~= 'string' then return '', 0 end
  local function field(name) return string.match(info, '\n' .. name .. ':([^\r\n]*)') or '' end
  local run, expired = field('run_id'), tonumber(field('expired_keys'))
  if run == '' or not expired then return '', 0 end
  local reset = field('cmdstat_config|resetstat')
  return table.concat({ run, field('evicted_keys'), field('rdb_last_load_keys_expired'), reset }, ' '), expired
end
