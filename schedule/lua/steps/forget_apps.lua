#!lua flags=allow-oom,allow-cross-slot-keys
--[[ forget_apps forgets all apps of those of many partitions of one server of a cluster that have no pending timers. It
leaves out a partition that is not here.
ARGV    the hash tags of the partitions
Returns 0.
If its reply is lost: again it forgets no others. ]]

function steps.forget_apps(KEYS, ARGV)
  for i = 1, #ARGV do
    local prefix = PREFIX .. ARGV[i] .. SUFFIX -- never exists, see index.lua
    local known = prefix .. 'known'
    if redis.pcall('EXISTS', known, prefix) == 1 and redis.pcall('EXISTS', prefix .. 'due', prefix) == 0 then
      redis.pcall('DEL', known)
    end
  end
  return 0
end
