#!lua flags=allow-oom,allow-cross-slot-keys
--[[ account_begin begins the accounts of many partitions of one server, where they have not begun, and compares the
others with their timers; or it ends them. It keeps counts that explain all timers, and in each case the number of
timers that have fired.
ARGV    1  1 to begin, as all who change the schedule count; 0 to end
        then the hash tags of the partitions
Returns the number of accounts begun or ended, then for each partition that differs its hash tag and the difference:
opening + in - out - there. A partition whose slot is moving is left out, and in a cluster one with nothing. If its
reply is lost: again it changes nothing more. ]]

-- begin begins the account of a partition, with its counts as balance.read returns them and so many timers.
local function begin(listed, change, timers)
  local account_key, is_whole = run.prefix .. 'account', change == timers
  if not is_whole then
    local fired = balance.fired(listed)
    redis.call('DEL', account_key)
    if fired > 0 then redis.call('ZADD', account_key, fired, balance.EARLIER) end
  end
  redis.call('ZADD', account_key, is_whole and 0 or timers, balance.OPENING, int(clock.real()), balance.BEGAN)
end

-- keep begins the account of a partition, or returns its difference. sets is the result of balance.look.
local function keep(sets)
  local listed, opening, change = balance.read()
  if opening then
    local due, firing = balance.there(sets)
    return 0, opening + change - due - firing
  end
  local timers = redis.call('ZCARD', run.due) + redis.call('ZCARD', run.firing)
  if CLUSTER and timers == 0 and #listed == 0 then return 0, 0 end
  begin(listed, change, timers)
  return 1, 0
end

function steps.account_begin(_, ARGV)
  index.begin()
  local out = { 0 }
  for i = 2, #ARGV do
    index.enter(PREFIX .. ARGV[i] .. SUFFIX) -- never exists, see index.lua
    local here = balance.look()
    local is_here, changed, difference = type(here) == 'number' and (here > 0 or not CLUSTER), 0, 0
    if is_here and ARGV[1] == '1' then
      changed, difference = keep(here)
    elseif is_here then
      changed = redis.call('ZREM', run.prefix .. 'account', balance.OPENING)
    end
    out[1] = out[1] + changed
    if difference ~= 0 then out[#out + 1], out[#out + 2] = ARGV[i], difference end
  end
  return out
end
