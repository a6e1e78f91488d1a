-- The wait of timers that were due when a restored Redis was found (restored.lua), for the function library, too.

-- waiting.read reads the field :w: of data, which may be missing.
function waiting.read(text)
  local till, last, ended = string.match(text or '', '^(%d+) (%d+) ?(%d*)$')
  return till and { till = tonumber(till), last = tonumber(last), ended = tonumber(ended) }
end

-- waiting.last returns the last wait of the partition, or nil.
function waiting.last() return waiting.read(redis.call('HGET', run.data, ':w:') or nil) end

-- waiting.till returns the last due time of waiting timers, or -1.
function waiting.till()
  local wait = waiting.last()
  return wait and not wait.ended and wait.till or -1
end
