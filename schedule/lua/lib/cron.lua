-- The grammar of cron expressions, and its faults, as internal/cron/fields.go has them. What an
-- expression means in a zone is computed there: Redis knows no zones.

local MAX_EXPRESSION, MAX_ZONE = 256, 64

-- How many years are searched for a date.
local HORIZON = 8

-- The grammar of each field.
local FIELDS = {
  SECOND = { name = 'second', low = 0, high = 59, last = 59 },
  MINUTE = { name = 'minute', low = 0, high = 59, last = 59 },
  HOUR = { name = 'hour', low = 0, high = 23, last = 23 },
  DAY = { name = 'day of month', low = 1, high = 31, last = 31, also = ', or L for the last day' },
  MONTH = {
    name = 'month', low = 1, high = 12, last = 12, names = 'JAN to DEC',
    named = { JAN = 1, FEB = 2, MAR = 3, APR = 4, MAY = 5, JUN = 6, JUL = 7, AUG = 8, SEP = 9, OCT = 10, NOV = 11, DEC = 12 },
  },
  WEEKDAY = {
    name = 'day of week', low = 0, high = 7, last = 6, names = 'SUN to SAT', also = ', or such as 5#2 for the second Friday',
    named = { SUN = 0, MON = 1, TUE = 2, WED = 3, THU = 4, FRI = 5, SAT = 6 },
  },
}

local SHORTHANDS = {
  ['@hourly'] = '0 0 * * * *', ['@daily'] = '0 0 0 * * *', ['@midnight'] = '0 0 0 * * *', ['@weekly'] = '0 0 0 * * 0',
  ['@monthly'] = '0 0 0 1 * *', ['@yearly'] = '0 0 0 1 1 *', ['@annually'] = '0 0 0 1 1 *',
}

-- quote returns a text in quotes, with what is not printable ASCII written \xXX.
local function quote(text)
  return '"' .. string.gsub(string.gsub(text, '["\\]', '\\%0'), '[^\32-\126]', function(c)
    return string.format('\\x%02x', string.byte(c))
  end) .. '"'
end

-- abbreviate shortens what somebody wrote for an error.
local function abbreviate(text)
  if #text <= 40 then return quote(text) end
  return string.sub(quote(string.sub(text, 1, 40)), 1, -2) .. '…"'
end

-- cut cuts a text at the first of a character. It returns what is before and after it, and
-- whether it is there.
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

-- item_fault is the fault of an item. why says more than that it is none.
local function item_fault(field, item, why)
  return field.name .. ' ' .. abbreviate(item) .. ': ' .. (why and why .. '; ' or '') .. 'want * or numbers from ' .. field.low
    .. ' to ' .. field.high .. (field.names and ' or ' .. field.names or '') .. ', as a list 1,2, a range 1-5 or with a step */5'
    .. (field.also or '')
end

-- read_span reads an item without its step. It returns from where to where it goes, which may
-- be down, or nil and the fault.
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

-- upward returns a range that goes down, from low to high, as ranges that go up and name the
-- same numbers: past the last number the steps go on from the lowest one.
local function upward(field, span, low, high, by)
  local from, to = cut(span, '-')
  if low > field.last then return steps('0', to, 0, high, by) end -- Sunday is 7, too
  local following = low + (math.floor((field.last - low) / by) + 1) * by - (field.last - field.low + 1)
  local first = steps(from, field.last, low, field.last, by)
  if following > high then return first end
  return first .. ',' .. steps(following, to, following, high, by)
end

-- read_item adds to a set what an item of a list names: *, a number, a range, or one of these
-- with a step. It returns the fault, or nil.
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

-- read_field reads a whole field into a set. read reads an item, read_item unless it is given.
-- It returns the fault, or nil.
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

-- read_weekday reads an item of the day of the week. The set has for each day which ones of a
-- month.
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

-- is_restricted tells whether a field of days leaves any out, by how it is written.
local function is_restricted(word) return word ~= '*' and word ~= '*/1' end

-- date_of returns the year, the month and the day of a day counted from 1970 on.
local function date_of(day)
  local z = day + 719468
  local era = math.floor(z / 146097)
  local doe = z - era * 146097
  local yoe = math.floor((doe - math.floor(doe / 1460) + math.floor(doe / 36524) - math.floor(doe / 146096)) / 365)
  local doy = doe - (365 * yoe + math.floor(yoe / 4) - math.floor(yoe / 100))
  local mp = math.floor((5 * doy + 2) / 153)
  local month = mp < 10 and mp + 3 or mp - 9
  return yoe + era * 400 + (month <= 2 and 1 or 0), month, doy - math.floor((153 * mp + 2) / 5) + 1
end

-- month_length returns how many days a month has.
local function month_length(year, month)
  if month == 2 then return (year % 4 == 0 and (year % 100 ~= 0 or year % 400 == 0)) and 29 or 28 end
  return (month == 4 or month == 6 or month == 9 or month == 11) and 30 or 31
end

-- has_date tells whether any day within the horizon is one that an expression names. It
-- looks at a day more at either end, for the zones.
local function has_date(days, months, weekdays, either)
  local today = math.floor(run.now / 86400000) - 1
  local year, month, day = date_of(today)
  local length, last_year = month_length(year, month), year + HORIZON
  for at = today, today + HORIZON * 366 + 2 do
    if months[month] then
      local by_date = days[day] or days.L and day == length
      local by_weekday = (weekdays[(at + 4) % 7] or {})[math.ceil(day / 7)]
      if by_date and by_weekday or either and (by_date or by_weekday) then return true end
    end
    day = day + 1
    if day > length then
      day, month = 1, month + 1
      if month > 12 then year, month = year + 1, 1 end
      if year > last_year + 1 then return false end
      length = month_length(year, month)
    end
  end
  return false
end

-- check_fields returns what is wrong with the six words of an expression, or nil. text is how
-- it was written.
local function check_fields(words, text)
  local days, months, weekdays = {}, {}, {}
  local wrong = read_field(FIELDS.SECOND, words[1], {}) or read_field(FIELDS.MINUTE, words[2], {}) or read_field(FIELDS.HOUR, words[3], {})
    or read_field(FIELDS.MONTH, words[5], months) or read_field(FIELDS.DAY, words[4], days, read_day)
    or read_field(FIELDS.WEEKDAY, words[6], weekdays, read_weekday)
  if wrong then return wrong end
  if not has_date(days, months, weekdays, is_restricted(words[4]) and is_restricted(words[6])) then
    return 'cron expression ' .. quote(text) .. ': no such time in the next eight years'
  end
end

-- zone_in returns the zone that the first or the last word of an expression is, or nil.
local function zone_in(words)
  if #words < 2 then return end
  local zone = string.match(words[1], '^CRON_TZ=(.+)') or string.match(words[1], '^TZ=(.+)')
  if zone then return zone end
  local last = words[#words]
  local area = string.match(last, '^(%a[^/]*)/%a')
  local upper = string.upper(last)
  if upper == 'UTC' or upper == 'GMT' or area and not field_number(FIELDS.WEEKDAY, area) then return last end
end

-- is_duration reports whether a text is a duration as --every takes it, without signs and spaces.
local function is_duration(text)
  return text ~= '' and string.gsub(string.gsub(text, '%d+%.?%d*ms', ''), '%d+%.?%d*[smhd]', '') == ''
end

-- cron.parse reads an expression. It returns it with one space between its fields, or nil and
-- what is wrong.
function cron.parse(expression)
  if #expression > MAX_EXPRESSION then
    return nil, 'cron expression of ' .. #expression .. ' bytes: want at most ' .. MAX_EXPRESSION
  end
  local words = {}
  for word in string.gmatch(expression, '%S+') do words[#words + 1] = word end
  local text = table.concat(words, ' ')
  local meant = #words == 1 and SHORTHANDS[string.lower(text)]
  if meant then return text end
  local zone = zone_in(words)
  if zone then return nil, 'cron expression ' .. quote(text) .. ': the zone stands apart: TZ ' .. zone .. ' (--tz, tz:)' end
  if #words > 1 and string.lower(words[1]) == '@every' then
    local interval = table.concat(words, ' ', 2)
    if not is_duration(interval) then interval = '5m' end
    return nil, 'cron expression ' .. quote(text) .. ': an interval is no cron expression: want EVERY in milliseconds (such as --every '
      .. interval .. ', every: ' .. interval .. ')'
  end
  if string.sub(text, 1, 1) == '@' then
    return nil, 'cron expression ' .. quote(text) .. ': want @hourly, @daily, @weekly, @monthly or @yearly'
  end
  if #words ~= 5 and #words ~= 6 then
    return nil, 'cron expression ' .. quote(text) .. ' has ' .. #words
      .. ' fields: want five (minute, hour, day, month, weekday), or six with the second first'
  end
  if #words == 5 then table.insert(words, 1, '0') end
  local wrong = check_fields(words, text)
  if wrong then return nil, wrong end
  return text
end

-- is_field tells of the name of a zone that it is a field of an expression. Where the two stand beside
-- each other, it is taken for one.
local function is_field(zone) return not read_field(FIELDS.WEEKDAY, zone, {}, read_weekday) or not read_field(FIELDS.MONTH, zone, {}) end

-- cron.check_zone returns what is wrong with the name of a zone, or nil. Whether there is such a
-- zone only timerds know.
function cron.check_zone(zone)
  if #zone > MAX_ZONE then return 'zone of ' .. #zone .. ' bytes: want at most ' .. MAX_ZONE end
  if zone == 'Local' or not string.find(zone, '^[A-Z][A-Za-z0-9_+/-]*$') or is_field(zone) then
    return 'zone ' .. quote(zone) .. ' is not in the time zone database: want a name such as Europe/Berlin or UTC'
  end
end
