#!lua flags=allow-oom,allow-cross-slot-keys,no-writes
--[[ apps collects the known apps of many partitions of one server of a cluster. It writes nothing. A partition whose
slot is moving may be left out.
ARGV    the hash tags of the partitions
Returns for each app its name and the time since which it is known, in ms. ]]

function steps.apps(KEYS, ARGV)
  local place, out = {}, {}
  for i = 1, #ARGV do
    local known = redis.pcall('ZRANGE', PREFIX .. ARGV[i] .. SUFFIX .. 'known', 0, -1, 'WITHSCORES')
    for j = 1, #known, 2 do
      local app, since = known[j], math.abs(tonumber(known[j + 1]))
      local n = place[app]
      if not n then
        n = #out + 1
        place[app], out[n], out[n + 1] = n, app, since
      elseif since < out[n + 1] then
        out[n + 1] = since
      end
    end
  end
  return out
end
