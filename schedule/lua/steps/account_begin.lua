#!lua flags=allow-oom,allow-cross-slot-keys
--[[ account_begin begins the accounts of many partitions of one server, where they have not begun, or ends them. It
keeps counts that explain all timers, and in each case how many have fired.
ARGV    1  1 to begin, as all who change the schedule count; 0 to end
        then the hash tags of the partitions
Returns how many have begun or ended. A partition whose slot is moving is left out, and in a cluster one with nothing.
If its reply is lost: again it changes nothing more. ]]

-- begin begins the account of a partition.
local function begin()
  local listed, opening, change = balance.read()
  if opening then return 0 end
  local due, firing = balance.there()
  local is_whole = change == due + firing
  if not is_whole then
    local fired = balance.fired(listed)
    redis.call('DEL', run.prefix .. 'account')
    if fired > 0 then redis.call('ZADD', run.prefix .. 'account', fired, balance.EARLIER) end
  end
  redis.call('ZADD', run.prefix .. 'account', is_whole and 0 or due + firing, balance.OPENING, int(clock.real()),
    balance.BEGAN)
  return 1
end

function steps.account_begin(_, ARGV)
  index.begin()
  local changed = 0
  for i = 2, #ARGV do
    index.enter(PREFIX .. ARGV[i] .. SUFFIX) -- never exists, see index.lua
    local here = redis.pcall('EXISTS', run.prefix, run.prefix .. 'account', run.due, run.firing)
    if type(here) == 'number' and (here > 0 or not CLUSTER) then
      changed = changed + (ARGV[1] == '1' and begin() or redis.call('ZREM', run.prefix .. 'account', balance.OPENING))
    end
  end
  return changed
end
