#!lua flags=allow-oom
-- include: clock index common announce
--[[ replan plans pending occurrences again that were armed by a clock that was ahead, as they were
found. What was changed since stays as it is: by EXPIRE, by a client's own command, by a
settlement.
KEYS    1  the partition's prefix
ARGV    for each its key, its serial, when it is due, when it is to be due, or 0 if that stays, and
        the option ;A= of its record from then on
Returns for each 1 if it was planned again, else 0.
If its reply is lost: they are planned again. ]]
local t = open(KEYS[1])
local serial = tonumber(t[1]) * 1000000 + tonumber(t[2])
local done, soonest = {}, nil

-- renumber writes a record with the serial of now, by which it is found no more, and perhaps with
-- another nominal time.
local function renumber(key, record, nominal, option)
  local colon = string.find(record, ':', 1, true)
  local header = string.sub(record, 1, colon - 1)
  if nominal then
    header = string.gsub(header, ';R=%d+,%d+', ';R=' .. int(serial) .. ',' .. nominal, 1)
    header = string.gsub(header, ';A=[^;]*', '', 1) .. option
  else
    header = string.gsub(header, ';R=%d+', ';R=' .. int(serial), 1)
  end
  redis.call('HSET', data_key, key, header .. string.sub(record, colon))
  redis.call('ZADD', prefix .. 'repeat', int(serial), key)
end

for i = 1, #ARGV, 5 do
  local key, is, due, again = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3])
  local record = redis.call('HGET', data_key, key) or 'm:'
  local moved = 0
  if pending(key) == due and tonumber(redis.call('ZSCORE', prefix .. 'repeat', key) or nil) == tonumber(is)
    and is_occurrence_of(record, is) then
    local at = expiry(key)
    if again == 0 then
      renumber(key, record)
    elseif again > now and (at == due and redis.pcall('PEXPIREAT', key, int(again)) == 1 or at == -2 and may_be_absent(record)) then
      renumber(key, record, int(again), ARGV[i + 4])
      redis.call('ZADD', due_key, int(again), key)
      soonest, moved = math.min(soonest or again, again), 1
    end
  end
  done[#done + 1] = moved
end
if soonest then announce(soonest) end
return done
