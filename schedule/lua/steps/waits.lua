#!lua flags=no-writes,allow-cross-slot-keys
--[[ waits looks for timers of a restored Redis that wait, in some partitions of a server (lib/restored.lua).
KEYS    none
ARGV    the hash tags of the partitions
Returns for each partition with waiting timers its hash tag, their last possible due time and the last heartbeat in its
data, both in ms, and their number, about. A partition that is not here is left out. It writes nothing. ]]

function steps.waits(_, ARGV)
  index.begin_timeless()
  local out = {}
  for i = 1, #ARGV do
    index.enter(PREFIX .. ARGV[i] .. SUFFIX)
    local here = redis.pcall('HGET', run.data, ':w:')
    local wait = type(here) == 'string' and waiting.read(here)
    if wait and not wait.ended then
      local due = redis.pcall('ZCOUNT', run.due, '-inf', int(wait.till))
      local taken = redis.pcall('ZCOUNT', run.firing, HELD_TEXT, int(HELD + wait.till))
      local count = (tonumber(due) or 0) + (tonumber(taken) or 0)
      out[#out + 1], out[#out + 2], out[#out + 3], out[#out + 4] = ARGV[i], int(wait.till), int(wait.last), count
    end
  end
  return out
end
