#!lua flags=allow-oom,allow-cross-slot-keys
--[[ begin_wait makes due timers of some partitions wait, on a server of a cluster that is another one than before, or
has other homes (lib/restored.lua). After the last partitions it is called without any; then the data are compared, and
claims go on.
KEYS    none
ARGV    1  the prefixes of the server's homes
        2  the last heartbeat in ms, or -1 if no timerd has run on these data
        3  the greatest age of it, in ms, at which JetStream drops second events
        4  the server's incarnation when its data were compared last, as far as the caller knows, or an empty text
        5  1 if the server had another first home then, else 0
        then the hash tags of the partitions
Returns 1 if the data are compared by now, else 0; or an error if none of the partitions can be read: the cluster may be
down.
If its reply is lost: again it begins the wait of the same timers, and of those due since. ]]

-- begin_all begins the wait of partitions, and returns an error if that failed in each.
local function begin_all(ARGV, first)
  local failed, done = nil, false
  for i = first, #ARGV do
    index.enter(PREFIX .. ARGV[i] .. SUFFIX)
    local fine, why = pcall(restored.begin_here, tonumber(ARGV[2]), tonumber(ARGV[3]))
    if fine then done = true else failed = why end
  end
  return not done and failed or nil
end

function steps.begin_wait(_, ARGV)
  index.begin()
  local homes, own = ARGV[1], restored.own()
  local is_compared, is_new = restored.is_compared(homes)
  if not own or is_compared then return 1 end
  local lived = ARGV[4] == own and (is_new or ARGV[5] == '1')
  if tonumber(ARGV[2]) >= 0 and not lived and #ARGV > 5 then
    local failed = begin_all(ARGV, 6)
    return failed and (type(failed) == 'table' and failed or redis.error_reply(failed)) or 0
  end
  restored.settle_in(homes, own)
  return 1
end
