#!lua flags=allow-oom,allow-cross-slot-keys
--[[ trim forgets old event ids whose retry was set, in many partitions of one server of a cluster. It leaves out a
partition that is not here.
ARGV    1  up to when, in ms
        2  the greatest number of ids to forget in each partition
        then the hash tags of the partitions
Returns 0.
If its reply is lost: again it forgets more of the old ids. ]]

function steps.trim(KEYS, ARGV)
  for i = 3, #ARGV do
    local retried = PREFIX .. ARGV[i] .. SUFFIX .. 'retried'
    local old = redis.pcall('ZCOUNT', retried, '-inf', ARGV[1])
    if type(old) == 'number' and old > 0 then
      redis.call('ZREMRANGEBYRANK', retried, 0, math.min(old, tonumber(ARGV[2])) - 1)
    end
  end
  return 0
end
