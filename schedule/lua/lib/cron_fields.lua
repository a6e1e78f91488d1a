-- The grammar of the fields of a cron expression, and its faults, as internal/cron/fields.go has them.

-- The grammar of each field.
local FIELDS = {
  SECOND = { name = 'second', low = 0, high = 59, last = 59 },
  MINUTE = { name = 'minute', low = 0, high = 59, last = 59 },
  HOUR = { name = 'hour', low = 0, high = 23, last = 23 },
  DAY = { name = 'day of month', low = 1, high = 31, last = 31, also = ', or L for the last day' },
  MONTH = {
    name = 'month', low = 1, high = 12, last = 12, names = 'JAN to DEC',
    named = { JAN = 1, FEB = 2, MAR = 3, APR = 4, MAY = 5, JUN = 6, JUL = 7, AUG = 8, SEP = 9, OCT = 10, NOV = 11,
    DEC = 12 },
  },
  WEEKDAY = {
    name = 'day of week', low = 0, high = 7, last = 6, names = 'SUN to SAT',
    also = ', or such as 5#2 for the second Friday',
    named = { SUN = 0, MON = 1, TUE = 2, WED = 3, THU = 4, FRI = 5, SAT = 6 },
  },
}

-- quote returns a text in quotes; bytes outside printable ASCII become \xXX.
function cron_fields.quote(text)
  return '"' .. string.gsub(string.gsub(text, '["\\]', '\\%0'), '[^\32-\126]', function(c)
    return string.format('\\x%02x', string.byte(c))
  end) .. '"'
end

-- abbreviate shortens a quotation for an error.
local function abbreviate(text)
  if #text <= 40 then return cron_fields.quote(text) end
  return string.sub(cron_fields.quote(string.sub(text, 1, 40)), 1, -2) .. '…"'
end

-- cut cuts a text at the first of a character. It returns the parts before and after it, and whether it is there.
local function cut(text, character)
  local at = string.find(text, character, 1, true)
  if not at then return text, '', false end
  return string.sub(text, 1, at - 1), string.sub(text, at + 1), true
end

-- read_number reads digits alone, few enough for any field.
local function read_number(text)
  if #text <= 3 and string.find(text, '^%d+$') then return tonumber(text) end
end

-- field_number reads a number of a field, or a name.
local function field_number(field, text)
  local named = field.named and field.named[string.upper(text)]
  if named then return named end
  local n = read_number(text)
  if n and n >= field.low and n <= field.high then return n end
end

-- item_fault is the fault of an item. why is a closer reason, or nil.
local function item_fault(field, item, why)
  return field.name .. ' ' .. abbreviate(item) .. ': ' .. (why and why .. '; ' or '') .. 'want * or numbers from '
    .. field.low
    .. ' to ' .. field.high .. (field.names and ' or ' .. field.names or '')
      .. ', as a list 1,2, a range 1-5 or with a step */5'
    .. (field.also or '')
end

-- read_span reads an item without its step. It returns from where to where it goes, which may be down, or nil and the
-- fault.
local function read_span(field, item, span, stepped)
  if span == '*' then return field.low, field.last end
  local from, to, is_range = cut(span, '-')
  local low, high = field_number(field, from), nil
  if not low then return nil, item_fault(field, item) end
  if is_range then
    high = field_number(field, to)
    if not high then return nil, item_fault(field, item) end
  else
    high = stepped and math.max(low, field.last) or low
  end
  if high == 0 and low > 0 and field.high > field.last then high = field.high end -- a range to Sunday
  return low, high
end

-- steps returns a range from low to high, called from and to, with a step.
local function steps(from, to, low, high, by)
  if low + by > high then return from end
  return from .. '-' .. to .. (by > 1 and '/' .. by or '')
end

-- upward returns a range that goes down, from low to high, as ranges that go up and name the same numbers: past the
-- last number the steps go on from the lowest one.
local function upward(field, span, low, high, by)
  local from, to = cut(span, '-')
  if low > field.last then return steps('0', to, 0, high, by) end -- Sunday is 7, too
  local following = low + (math.floor((field.last - low) / by) + 1) * by - (field.last - field.low + 1)
  local first = steps(from, field.last, low, field.last, by)
  if following > high then return first end
  return first .. ',' .. steps(following, to, following, high, by)
end

-- read_item adds the numbers of an item of a list to a set: of *, a number, a range, or one of these with a step. It
-- returns the fault, or nil.
local function read_item(field, item, set)
  local span, step, stepped = cut(item, '/')
  local low, high = read_span(field, item, span, stepped)
  if not low then return high end
  local by, most = 1, field.last - field.low + 1
  if stepped then
    by = read_number(step)
    if not by or by < 1 or by > most then return item_fault(field, item, 'a step is a number from 1 to ' .. most) end
  end
  if high < low then return item_fault(field, item, 'a range goes up: write ' .. upward(field, span, low, high, by)) end
  for n = low, high, by do set[n] = true end
end

-- read_field reads a whole field into a set. read reads an item, read_item unless it is given. It returns the fault, or
-- nil.
local function read_field(field, word, set, read)
  for item in string.gmatch(word .. ',', '([^,]*),') do
    local wrong = (read or read_item)(field, item, set)
    if wrong then return wrong end
  end
end

-- read_day reads an item of the day of the month, where set.L is the last day.
local function read_day(field, item, set)
  if string.upper(item) ~= 'L' then return read_item(field, item, set) end
  set.L = true
end

-- read_weekday reads an item of the day of the week. The set has for each day which ones of a month.
local function read_weekday(field, item, set)
  local name, which, is_nth = cut(item, '#')
  local first, last, days = 1, 5, {}
  if is_nth then
    local n = read_number(which)
    if not n or n < 1 or n > 5 or not field_number(field, name) then
      return item_fault(field, item, 'after # comes which one of the month, from 1 to 5, and before it one day')
    end
    first, last = n, n
  end
  local wrong = read_item(field, name, days)
  if wrong then return wrong end
  for day in pairs(days) do
    local weeks = set[day % 7] or {}
    for week = first, last do weeks[week] = true end
    set[day % 7] = weeks
  end
end

-- read_all reads the six fields of an expression, and the days, months and weekdays into sets. It returns the fault, or
-- nil.
function cron_fields.read_all(words, days, months, weekdays)
  return read_field(FIELDS.SECOND, words[1], {}) or read_field(FIELDS.MINUTE, words[2], {})
    or read_field(FIELDS.HOUR, words[3], {})
    or read_field(FIELDS.MONTH, words[5], months) or read_field(FIELDS.DAY, words[4], days, read_day)
    or read_field(FIELDS.WEEKDAY, words[6], weekdays, read_weekday)
end

-- is_weekday reports whether a text names a day of the week.
function cron_fields.is_weekday(text) return field_number(FIELDS.WEEKDAY, text) ~= nil end

-- is_field reports whether the name of a zone is a field of an expression. Where the two stand beside each other, it is
-- taken for one.
function cron_fields.is_field(zone)
  return not read_field(FIELDS.WEEKDAY, zone, {}, read_weekday) or not read_field(FIELDS.MONTH, zone, {})
end
