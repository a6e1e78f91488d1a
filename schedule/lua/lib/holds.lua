-- Holds. A held timer is not claimed: once due it is in firing with the score HELD plus its due time. The field :h: of
-- data is this partition's copy of the list of holds:
--   <generation>;  then for each hold  <until>,<cutoff>,<a>,<m>,<t>:<app><module><type>
-- with the lengths a, m and t of the parts, 0 for one that stands for any. until is when it ends, in ms, or 0. cutoff
-- is 0, or the last due time that it still holds: it is being resumed.

-- read is holds.read, each time anew.
local function read(text)
  local generation, at = string.match(text, '^(%d+);()')
  local forms, some = {}, false -- by the parts that count: name -> the last due time held
  while true do
    local ends, cutoff, a, m, t, from = string.match(text, '^(%d+),(%d+),(%d+),(%d+),(%d+):()', at)
    if not from then break end
    local app, module = string.sub(text, from, from + a - 1), string.sub(text, from + a, from + a + m - 1)
    at = from + a + m + t
    if ends == '0' or clock.due() < tonumber(ends) then
      local form = (a ~= '0' and 1 or 0) + (m ~= '0' and 2 or 0) + (t ~= '0' and 4 or 0)
      forms[form] = forms[form] or {}
      forms[form][app .. ':' .. module .. ':' .. string.sub(text, at - t, at - 1)] = cutoff == '0' and math.huge
        or tonumber(cutoff)
      some = true
    end
  end
  if not some then return tonumber(generation), nil end
  return tonumber(generation), function(key, due)
    local app, module, typ = string.match(key, '^([^:]*):([^:]*):([^:]*):')
    if not app then return false end
    for form, names in pairs(forms) do
      local last = names[(form % 2 > 0 and app or '') .. ':' .. (form % 4 > 1 and module or '') .. ':' .. (form > 3
        and typ or '')]
      if last and due <= last then return true end
    end
    return false
  end
end

-- holds.read reads such a text, or nil. It returns the generation, and if anything is held a function that reports
-- whether a hold covers a key and its due time. All partitions have copies of one list: a call reads it once.
function holds.read(text)
  if not text then return 0, nil end
  if text ~= run.holds_text then run.holds_text, run.holds = text, { read(text) } end
  return run.holds[1], run.holds[2]
end

-- holds.of returns the function of holds.read for the data of a partition.
function holds.of(data) return select(2, holds.read(redis.call('HGET', data, ':h:'))) end

-- holds.is_current reports whether the partition's copy of the list has a generation.
function holds.is_current(generation)
  return (holds.read(redis.call('HGET', run.data, ':h:'))) == tonumber(generation)
end
