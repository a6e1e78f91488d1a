#!lua flags=allow-oom
-- include: owed
--[[ settle forgets firings.
KEYS    1  the partition's prefix
ARGV    their refs
Returns how many of them there were.
If its reply is lost: again it changes nothing. If it never ran: the firings are claimed
and published again once their leases end. ]]
redis.call('ZREM', KEYS[1] .. 'firing', unpack(ARGV))
if redis.call('EXISTS', KEYS[1] .. 'refused', KEYS[1] .. 'owed') > 0 then
  redis.call('ZREM', KEYS[1] .. 'refused', unpack(ARGV))
  unlist_owed(KEYS[1], ARGV)
end
return redis.call('HDEL', KEYS[1] .. 'firingdata', unpack(ARGV))
