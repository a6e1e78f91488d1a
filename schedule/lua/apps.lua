--[[ apps collects the apps that timer_set was called for, in many partitions of one
server of a cluster. It writes nothing. A partition whose slot is moving may be left out.
ARGV    the hash tags of the partitions
Returns the apps, each once. ]]
local seen, out = {}, {}
for i = 1, #ARGV do
  local apps = redis.pcall('SMEMBERS', PREFIX .. ARGV[i] .. SUFFIX .. 'apps')
  for j = 1, #apps do
    if not seen[apps[j]] then
      seen[apps[j]] = true
      out[#out + 1] = apps[j]
    end
  end
end
return out
