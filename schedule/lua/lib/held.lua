-- include: hold
-- held_in returns the function of read_holds for the data of a partition. All partitions have copies of one list: a
-- call for many partitions reads it once.
local held_text, held_by
local function held_in(data)
  local text = redis.call('HGET', data, ':h:')
  if text ~= held_text then
    held_text, held_by = text, select(2, read_holds(text or nil))
  end
  return held_by
end
