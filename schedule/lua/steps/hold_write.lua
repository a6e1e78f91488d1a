#!lua flags=allow-oom
--[[ hold_write changes the list of holds, if nobody else has changed it since the caller read it. It writes the copy of
its own partition in the same step: a single Redis has no other.
KEYS    1  the prefix of the partition that has the list
ARGV    1  the generation that the caller has read, 0 if there was none
        2  a generation that the new one is to exceed
        3  the new list without its generation, as in holds.lua, or "none" if there are no holds
        then pairs of a namespace and its hold, or an empty text to remove it
Returns the new generation, or -1 if somebody else has changed the list.
If its reply is lost: a second call returns -1. The caller reads the list again, and sees whether its change is there.
]]

function steps.hold_write(KEYS, ARGV)
  index.open(KEYS[1])
  local holds_key = run.prefix .. 'holds'
  local generation = tonumber(redis.call('HGET', holds_key, ':generation:') or 0)
  if generation ~= tonumber(ARGV[1]) then return -1 end
  generation = math.max(generation, tonumber(ARGV[2]), clock.real() - 1) + 1
  if ARGV[3] == 'none' then
    redis.call('HDEL', run.data, ':h:')
  else
    redis.call('HSET', run.data, ':h:', int(generation) .. ';' .. ARGV[3])
  end
  redis.call('HSET', holds_key, ':generation:', int(generation))
  for i = 4, #ARGV, 2 do
    redis.call('HDEL', holds_key, ARGV[i], ':next:' .. ARGV[i])
    if ARGV[i + 1] ~= '' then redis.call('HSET', holds_key, ARGV[i], ARGV[i + 1]) end
  end
  return generation
end
