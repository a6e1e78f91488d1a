#!lua flags=allow-oom
--[[ hold_undraw begins the times of a resume at a rate anew, once no timer has one that was drawn by a
clock that was ahead.
KEYS    1  the prefix of the partition that has the list of holds
ARGV    1  the namespace
        2  when the next time is, in ms, as the caller has read it
Returns 1, or 0 if times were drawn meanwhile.
If its reply is lost: again it changes nothing more. ]]
local field = ':next:' .. ARGV[1]
local drawn = tonumber(redis.call('HGET', KEYS[1] .. 'holds', field) or nil)
return drawn == tonumber(ARGV[2]) and redis.call('HDEL', KEYS[1] .. 'holds', field) or 0
