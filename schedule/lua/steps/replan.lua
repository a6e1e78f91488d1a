#!lua flags=allow-oom
--[[ replan plans pending occurrences again that were armed by a clock that was ahead, as they were found. A timer that
was changed since, by EXPIRE, a client's own command or a settlement, stays as it is.
KEYS    1  the partition's prefix
ARGV    for each its key, its serial, when it is due, when it is to be due, or 0 if that stays, and
        the option ;A= of its record from then on
Returns for each 1 if it was planned again, else 0.
If its reply is lost: they are planned again. ]]

function steps.replan(KEYS, ARGV)
  index.open(KEYS[1])
  local serial, done, soonest = clock.micros(), {}, nil

  -- renumber writes a record with a serial of now, so that replan_find skips it, and perhaps another nominal time.
  local function renumber(key, record, nominal, option)
    local colon = string.find(record, ':', 1, true)
    local header = string.sub(record, 1, colon - 1)
    if nominal then
      header = string.gsub(header, ';R=%d+,%d+', ';R=' .. int(serial) .. ',' .. nominal, 1)
      header = string.gsub(header, ';A=[^;]*', '', 1) .. option
    else
      header = string.gsub(header, ';R=%d+', ';R=' .. int(serial), 1)
    end
    index.rewrite(key, header .. string.sub(record, colon))
    redis.call('ZADD', run.prefix .. 'repeat', int(serial), key)
  end

  for i = 1, #ARGV, 5 do
    local key, is, due, again = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3])
    local record = redis.call('HGET', run.data, key) or 'm:'
    local moved = 0
    if index.pending(key) == due and tonumber(redis.call('ZSCORE', run.prefix .. 'repeat', key) or nil) == tonumber(is)
      and entry.is_occurrence_of(record, is) then
      local at = ttl.try(key)
      if again == 0 then
        renumber(key, record)
      elseif again > clock.due() and (at == due and ttl.try_move(key, again) or at == -2
        and entry.may_be_absent(record)) then
        renumber(key, record, int(again), ARGV[i + 4])
        index.redate(key, int(again))
        soonest, moved = math.min(soonest or again, again), 1
      end
    end
    done[#done + 1] = moved
  end
  if soonest then wake.at(soonest) end
  return done
end
