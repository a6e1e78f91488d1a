-- repetition.plan_ref returns the ref of a repetition that is to be planned, with its serial.
function repetition.plan_ref(key, serial) return int(math.floor(serial / 1000)) .. ':0:' .. key end

-- repetition.serial_of returns the serial of a key's repetition, or nil.
function repetition.serial_of(key) return tonumber(redis.call('ZSCORE', run.prefix .. 'repeat', key) or nil) end

-- repetition.finish ends the repetition of a key, if serial is not nil: its firing occurrence arms no next one, and a
-- plan is removed by a kind, as in index.forget.
function repetition.finish(key, serial, kind)
  if not serial then return end
  redis.call('ZREM', run.prefix .. 'repeat', key)
  if serial < 0 then
    index.end_firings({ repetition.plan_ref(key, -serial) }, true, kind)
  end
end

-- repetition.plan has a timerd find the next occurrence of a key's repetition, with a serial. kind is as in index.put.
function repetition.plan(key, serial, record, kind)
  local ref = repetition.plan_ref(key, serial)
  index.fire(ref, '0', record, kind)
  owing.list({ ref })
  redis.call('ZADD', run.prefix .. 'repeat', int(-serial), key)
end

-- repetition.cancel takes a key's own timer out of the schedule, and ends its repetition.
function repetition.cancel(key)
  index.forget(key, account.CANCELLED)
  repetition.finish(key, repetition.serial_of(key), account.CANCELLED)
end
