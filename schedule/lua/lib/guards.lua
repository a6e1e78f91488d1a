-- Guards: keys that decide in the claim whether a timer fires. A record has them as options, U for UNLESS and I for IF.
-- A claim notes in the record of the firing, as the option G, the guard that said no, U or I: no later claim publishes
-- the firing. With a ? before the letter it is a guard that timerd may not read: each claim asks it again.

-- In a record %, : and ; of a key are written as hex digits.
local SIGNS = { ['%25'] = '%', ['%3A'] = ':', ['%3B'] = ';' }
local function escape(sign) return string.format('%%%02X', string.byte(sign)) end

-- guards.options returns the options of a record with the guards of timer_set's UNLESS and IF, nil for none.
function guards.options(unless, only_if)
  local options = unless and ';U=' .. string.gsub(unless, '[%%:;]', escape) or ''
  return only_if and options .. ';I=' .. string.gsub(only_if, '[%%:;]', escape) or options
end

-- guards.key returns the key of a record's guard, U or I, or nil.
function guards.key(header, name)
  local text = string.match(header, ';' .. name .. '=([^;]*)')
  return text and (string.gsub(text, '%%%x%x', SIGNS))
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

-- guards.is_here reports whether a key may be a guard of the partition's timers: in a cluster one of its slot. An
-- error, as without the right to ask, would end a claim that has moved its timers; the next one would not judge them.
function guards.is_here(key)
  if not CLUSTER then return true end
  local slot = redis.pcall('CLUSTER', 'KEYSLOT', key)
  return type(slot) == 'number' and slot == redis.pcall('CLUSTER', 'KEYSLOT', run.prefix)
end

-- fails returns the letter of a guard that says no, with a ? before it if timerd may not read the key; or nil.
local function fails(header, name, wanted)
  local key = guards.key(header, name)
  if not key then return nil end
  local there = guards.is_here(key) and redis.pcall('EXISTS', key)
  if type(there) ~= 'number' then return '?' .. name end
  return there ~= wanted and name or nil
end

-- verdict returns what a claim notes of a firing. A guard that says no counts before one that cannot be read.
local function verdict(header)
  local unless, only_if = fails(header, 'U', 0), fails(header, 'I', 1)
  if unless == 'U' or not only_if then return unless or '' end
  return only_if == 'I' and only_if or unless or only_if
end

-- judge returns the record of a claimed firing, with what its guards say; and whether it is another one. perhaps says
-- that the event may have been published: then the guards are not asked.
local function judge(ref, record, perhaps)
  local header = string.match(record, '^[^:]*')
  if not string.find(header, ';[UI]=') or string.find(ref, '^%d+:0:') then return record, false end
  local noted = string.match(header, ';G=([^;]*)')
  if noted == 'U' or noted == 'I' or perhaps and not noted then return record, false end
  local says = verdict(header)
  if says == (noted or '') then return record, false end
  return string.gsub(header, ';G=[^;]*', '', 1) .. (says == '' and '' or ';G=' .. says)
    .. string.sub(record, #header + 1), true
end

-- guards.judge_one judges a firing that a claim has taken, and returns its record.
function guards.judge_one(ref, record, perhaps)
  if string.byte(record) == 58 then return record end -- as nearly all
  local changed
  record, changed = judge(ref, record, perhaps)
  if changed then index.rewrite_firings({ ref, record }) end
  return record
end

-- guards.judge_all judges firings that were pending, and changes their records in the table.
function guards.judge_all(refs, records)
  local changed = {}
  for i = 1, #records do
    if string.byte(records[i]) ~= 58 then
      local record, is_changed = judge(refs[i], records[i], false)
      if is_changed then
        records[i] = record
        changed[#changed + 1], changed[#changed + 2] = refs[i], record
      end
    end
  end
  if #changed > 0 then index.rewrite_firings(changed) end
end
