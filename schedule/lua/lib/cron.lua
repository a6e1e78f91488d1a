-- Cron expressions and their faults, as internal/cron has them. The meaning of an expression in a zone is computed
-- there: Redis knows no zones.

local MAX_EXPRESSION, MAX_ZONE = 256, 64

-- Years searched for a date.
local HORIZON = 8

local SHORTHANDS = {
  ['@hourly'] = '0 0 * * * *', ['@daily'] = '0 0 0 * * *', ['@midnight'] = '0 0 0 * * *', ['@weekly'] = '0 0 0 * * 0',
  ['@monthly'] = '0 0 0 1 * *', ['@yearly'] = '0 0 0 1 1 *', ['@annually'] = '0 0 0 1 1 *',
}

-- is_restricted reports whether a field of days leaves any out, by its text.
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

-- month_length returns the days of a month.
local function month_length(year, month)
  if month == 2 then return (year % 4 == 0 and (year % 100 ~= 0 or year % 400 == 0)) and 29 or 28 end
  return (month == 4 or month == 6 or month == 9 or month == 11) and 30 or 31
end

-- has_date reports whether an expression names any day within the horizon. It looks at a day more at either end, for
-- the zones.
local function has_date(days, months, weekdays, either)
  local today = math.floor(clock.due() / 86400000) - 1
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

-- check_fields returns the fault of the six words of an expression, or nil. text is the expression.
local function check_fields(words, text)
  local days, months, weekdays = {}, {}, {}
  local wrong = cron_fields.read_all(words, days, months, weekdays)
  if wrong then return wrong end
  if not has_date(days, months, weekdays, is_restricted(words[4]) and is_restricted(words[6])) then
    return 'cron expression ' .. cron_fields.quote(text) .. ': no such time in the next eight years'
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
  if upper == 'UTC' or upper == 'GMT' or area and not cron_fields.is_weekday(area) then return last end
end

-- is_duration reports whether a text is a duration as --every takes it, without signs and spaces.
local function is_duration(text)
  return text ~= '' and string.gsub(string.gsub(text, '%d+%.?%d*ms', ''), '%d+%.?%d*[smhd]', '') == ''
end

-- cron.parse reads an expression. It returns it with one space between its fields, or nil and the fault.
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
  if zone then return nil, 'cron expression ' .. cron_fields.quote(text) .. ': the zone stands apart: TZ ' .. zone
    .. ' (--tz, tz:)' end
  if #words > 1 and string.lower(words[1]) == '@every' then
    local interval = table.concat(words, ' ', 2)
    if not is_duration(interval) then interval = '5m' end
    return nil, 'cron expression ' .. cron_fields.quote(text)
      .. ': an interval is no cron expression: want EVERY in milliseconds (such as --every '
      .. interval .. ', every: ' .. interval .. ')'
  end
  if string.sub(text, 1, 1) == '@' then
    return nil, 'cron expression ' .. cron_fields.quote(text) .. ': want @hourly, @daily, @weekly, @monthly or @yearly'
  end
  if #words ~= 5 and #words ~= 6 then
    return nil, 'cron expression ' .. cron_fields.quote(text) .. ' has ' .. #words
      .. ' fields: want five (minute, hour, day, month, weekday), or six with the second first'
  end
  if #words == 5 then table.insert(words, 1, '0') end
  local wrong = check_fields(words, text)
  if wrong then return nil, wrong end
  return text
end

-- cron.check_zone returns the fault of a zone's name, or nil. Only timerds know whether the zone exists.
function cron.check_zone(zone)
  if #zone > MAX_ZONE then return 'zone of ' .. #zone .. ' bytes: want at most ' .. MAX_ZONE end
  if zone == 'Local' or not string.find(zone, '^[A-Z][A-Za-z0-9_+/-]*$') or cron_fields.is_field(zone) then
    return 'zone ' .. cron_fields.quote(zone)
      .. ' is not in the time zone database: want a name such as Europe/Berlin or UTC'
  end
end
