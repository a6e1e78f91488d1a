-- flags returns the flags of a record.
function entry.flags(record) return string.match(record, '^%d*(%a*)[:;]') or 'm' end

-- entry.add_flag returns a record with one more flag.
function entry.add_flag(record, flag)
  if string.find(entry.flags(record), flag, 1, true) then return record end
  local n = #string.match(record, '^%d*')
  return string.sub(record, 1, n) .. flag .. string.sub(record, n + 1)
end

-- entry.is_repeating reports whether a record belongs to an occurrence of a repetition.
function entry.is_repeating(record)
  return string.byte(record) ~= 58 and string.find(entry.flags(record), 'p', 1, true) ~= nil
end

-- entry.is_occurrence_of reports whether a record belongs to an occurrence of the repetition with a serial, as ZSCORE
-- returns it.
function entry.is_occurrence_of(record, serial)
  return entry.is_repeating(record) and math.abs(tonumber(serial)) == tonumber(string.match(record, ';R=(%d+)'))
end

-- entry.with_value returns the record of an occurrence with another record's payload and flags.
function entry.with_value(occurrence, record)
  local marks, n = string.match(record, '^%d*(%a*)[^:]*()') -- not of the payload, which costs 15 ns a byte
  return 'p' .. string.gsub(marks, 'p', '') .. string.match(occurrence, '^%d*%a*([^:]*)') .. string.sub(record, n)
end

-- entry.may_be_absent reports whether a pending timer's key may be gone, by its record, although nobody deleted it.
function entry.may_be_absent(record) return string.find(entry.flags(record), '[eu]') ~= nil end

-- entry.may_state_attempt reports whether a payload may state its attempt, as a JSON object with a field attempt,
-- written with escapes or without.
function entry.may_state_attempt(payload)
  return string.find(payload, 'attempt', 1, true) or string.find(payload, '\\u', 1, true)
end

-- entry.fires_again reports whether a timer whose record has attempt 1 has fired before: it was postponed, or is
-- replayed.
function entry.fires_again(record) return string.find(string.match(record, '^[^:]*'), ';O=', 1, true) ~= nil end

-- entry.attempt returns the attempt that a record states, or an empty string.
function entry.attempt(record)
  local first = string.byte(record)
  if first == 58 or first == 59 then return '' end -- as nearly all do
  return string.match(record, '^%d*')
end

-- entry.value returns the payload of a record, after its colon.
function entry.value(record) return string.sub(record, string.find(record, ':', 1, true) or #record + 1) end

-- renewed returns the record of a timer that is set for another time: nothing is known of its key yet. A pattern that
-- took in the payload would cost 15 ns a byte.
function entry.renewed(record)
  local n = string.find(record, ':', 1, true)
  if n == 1 then return record end -- as nearly all do
  local attempt, marks, options = string.match(string.sub(record, 1, n - 1), '^(%d*)(%a*)(.*)$')
  return attempt .. string.gsub(marks, '[euxh]', '') .. options .. string.sub(record, n)
end
