-- Guards: keys that decide in the claim whether a timer fires (judging.lua). A record has them as options, U for UNLESS
-- and I for IF. Timers without one have those of the caller's rules. A claim notes in the record of the firing, as the
-- option G, the guard that said no: U or I, and after a = its key if it is of the rules. No later claim publishes the
-- firing. With a ? before it, it is a guard that timerd may not read: each claim asks again.

-- In a record %, : and ; of a key are written as hex digits.
local SIGNS = { ['%25'] = '%', ['%3A'] = ':', ['%3B'] = ';' }
local ESCAPES = { ['%'] = '%25', [':'] = '%3A', [';'] = '%3B' }

function guards.escaped(key) return (string.gsub(key, '[%%:;]', ESCAPES)) end
function guards.unescaped(text) return (string.gsub(text, '%%%x%x', SIGNS)) end

-- guards.options returns the options of a record with the guards of timer_set's UNLESS and IF, nil for none.
function guards.options(unless, only_if)
  local options = unless and ';U=' .. guards.escaped(unless) or ''
  return only_if and options .. ';I=' .. guards.escaped(only_if) or options
end

-- guards.key returns the key of a record's guard, U or I, or nil.
function guards.key(header, name)
  local text = string.match(header, ';' .. name .. '=([^;]*)')
  return text and guards.unescaped(text)
end

-- guards.of returns the options of a record with its guards, or an empty text.
function guards.of(record)
  if string.byte(record) == 58 then return '' end -- as nearly all
  local header = string.match(record, '^[^:]*')
  return (string.match(header, ';U=[^;]*') or '') .. (string.match(header, ';I=[^;]*') or '')
end

-- guards.keep returns a record with the guards of an older one of the same timer.
function guards.keep(older, record)
  local options = guards.of(older)
  if options == '' then return record end
  local n = string.find(record, ':', 1, true)
  return string.sub(record, 1, n - 1) .. options .. string.sub(record, n)
end

-- guards.is_refused reports whether a guard has said no to the firing of a record.
function guards.is_refused(record)
  return string.byte(record) ~= 58 and string.find(record, '^[^:]*;G=[UI]') ~= nil
end

-- without_note returns a record without a claim's note on its guards.
local function without_note(record)
  local header = string.match(record, '^[^:]*')
  return string.gsub(header, ';G=[^;]*', '', 1) .. string.sub(record, #header + 1)
end

-- guards.is_same reports whether two records of a ref differ at most in claims' notes on its guards.
function guards.is_same(one, other) return one == other or without_note(one) == without_note(other) end

-- guards.is_here reports whether a key may be a guard of the partition's timers: in a cluster one of its slot.
function guards.is_here(key)
  return not CLUSTER or redis.call('CLUSTER', 'KEYSLOT', key) == redis.call('CLUSTER', 'KEYSLOT', run.prefix)
end
