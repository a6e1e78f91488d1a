#!lua flags=no-writes,allow-cross-slot-keys
--[[ last_beat reads the last heartbeat in the data of some partitions of a server (lib/restored.lua).
KEYS    none
ARGV    the hash tags of the partitions
Returns the heartbeat in ms, or -1 if there is none. A partition that is not here, or that somebody else has written to,
has none; if that is each of them, it returns an error: the cluster may be down.
It writes nothing. ]]

function steps.last_beat(_, ARGV)
  local last, failed, done = -1, nil, false
  for i = 1, #ARGV do
    local at = redis.pcall('HGET', PREFIX .. ARGV[i] .. SUFFIX .. 'data', ':s:')
    if type(at) == 'table' then
      failed = at
    else
      last, done = math.max(last, tonumber(at or nil) or -1), true
    end
  end
  return not done and failed or last
end
