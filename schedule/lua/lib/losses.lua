-- losses returns a text that changes whenever a key may have vanished although no client deleted it and its time had
-- not come: the server is another one, was started again, or was a replica meanwhile; keys were evicted, or ran out
-- while data were loaded. The text is empty if the server does not say, or no longer because its counts were reset. It
-- also returns the number of keys that ran out.
function losses.read()
  local info = redis.pcall('INFO', 'server', 'stats', 'persistence', 'replication', 'commandstats')
  if type(info) ~= 'string' then return '', 0 end
  local function field(name) return string.match(info, '\n' .. name .. ':([^\r\n]*)') or '' end
  local run, expired = field('run_id'), tonumber(field('expired_keys'))
  if run == '' or not expired or field('cmdstat_config|resetstat') ~= '' then return '', 0 end
  local counts = { run, field('master_replid'), field('evicted_keys'), field('rdb_last_load_keys_expired') }
  return table.concat(counts, ' '), expired
end
