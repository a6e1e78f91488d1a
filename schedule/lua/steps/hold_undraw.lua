#!lua flags=allow-oom
--[[ hold_undraw begins the times of a resume at a rate anew, once no timer has one that was drawn by a clock that was
ahead.
KEYS    1  the prefix of the partition that has the list of holds
ARGV    1  the namespace
        2  when the next time is, in ms, as the caller has read it
Returns 1, or 0 if times were drawn meanwhile.
If its reply is lost: again it changes nothing more. ]]

function steps.hold_undraw(KEYS, ARGV)
  index.open(KEYS[1])
  local holds_key, field = run.prefix .. 'holds', ':next:' .. ARGV[1]
  local drawn = tonumber(redis.call('HGET', holds_key, field) or nil)
  return drawn == tonumber(ARGV[2]) and redis.call('HDEL', holds_key, field) or 0
end
