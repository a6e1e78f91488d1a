--[[ release gives claims back, so that anybody may claim them at once. A firing that was
claimed again meanwhile stays as it is.
KEYS    1  the partition's prefix
ARGV    pairs of a ref and the end of the lease that it was claimed under
Returns how many were given back.
If its reply is lost: again it changes nothing, as nothing has that lease any more. ]]
local firing_key, released = KEYS[1] .. 'firing', 0
for i = 1, #ARGV, 2 do
  if tonumber(redis.call('ZSCORE', firing_key, ARGV[i]) or nil) == tonumber(ARGV[i + 1]) then
    redis.call('ZADD', firing_key, 0, ARGV[i])
    released = released + 1
  end
end
return released
