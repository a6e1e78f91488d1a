#!lua flags=no-writes
--[[ replan_find reads repetitions whose next occurrences were armed by a clock that was ahead, those by the latest
clock first. It writes nothing.
KEYS    1  the partition's prefix
ARGV    1  the least time by which it was ahead, in ms
        2  the number of repetitions to pass over
        3  the greatest number to look at
Returns {this server's clock, the number looked at, then of each that is pending its key, its serial, its due time and
its record without the colon and the payload}. It stops after 400 KB of payloads, but not before the first
repetition. ]]

function steps.replan_find(KEYS, ARGV)
  index.open(KEYS[1])
  local over = '(' .. int((clock.real() + tonumber(ARGV[1])) * 1000)
  local listed = redis.call('ZRANGE', run.prefix .. 'repeat', '+inf', over, 'BYSCORE', 'REV', 'LIMIT', ARGV[2], ARGV[3],
    'WITHSCORES')
  local out, read = { clock.real(), #listed / 2 }, 0
  for i = 1, #listed, 2 do
    local key = listed[i]
    local due = index.pending(key)
    read = read + (due and redis.call('HSTRLEN', run.data, key) or 0)
    if read > BUDGET and i > 1 then
      out[2] = (i - 1) / 2
      break
    end
    local record = due and redis.call('HGET', run.data, key)
    local colon = record and string.find(record, ':', 1, true)
    if colon then
      local n = #out
      out[n + 1], out[n + 2], out[n + 3], out[n + 4] = key, int(tonumber(listed[i + 1])), due,
        string.sub(record, 1, colon - 1)
    end
  end
  return out
end
