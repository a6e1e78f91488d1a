#!lua flags=allow-oom,allow-cross-slot-keys
--[[ hold_copy brings the copies of the list of holds up to date in many partitions of one server. A newer copy stays;
so does the copy beside the list, if the list is newer: a late call would bring back a hold that has ended.
ARGV    1  the generation of the list
        2  the list without it, as in holds.lua, or "none" if there are no holds: then there
           are to be no copies
        then the hash tags of the partitions
Returns {the newest generation of a copy, then the hash tags of partitions that are not here as a whole, because their
slots are moving: their copies are as they were}.
If its reply is lost, or only some copies were written: again it writes the rest. ]]

function steps.hold_copy(KEYS, ARGV)
  local text, newest, out = ARGV[1] .. ';' .. ARGV[2], 0, { 0 }
  for i = 3, #ARGV do
    local prefix = PREFIX .. ARGV[i] .. SUFFIX -- never exists, see index.lua
    if type(redis.pcall('EXISTS', prefix .. 'data', prefix)) == 'table' then
      out[#out + 1] = ARGV[i]
    else
      local copy = redis.call('HGET', prefix .. 'data', ':h:')
      local generation = tonumber(copy and string.match(copy, '^%d+') or 0)
      local listed = tonumber(redis.call('HGET', prefix .. 'holds', ':generation:') or 0)
      local newer = generation < tonumber(ARGV[1]) and listed <= tonumber(ARGV[1])
      if newer and ARGV[2] ~= 'none' then
        redis.call('HSET', prefix .. 'data', ':h:', text)
      elseif newer and copy then
        redis.call('HDEL', prefix .. 'data', ':h:')
      end
      newest = math.max(newest, generation)
    end
  end
  out[1] = newest
  return out
end
