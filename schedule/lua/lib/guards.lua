-- Guards: keys that decide in the claim whether a timer fires. A record has them as options, U for UNLESS and I for IF.
-- Timers without one have those of the caller's rules. A claim notes in the record of the firing, as the option G, the
-- guard that said no: U or I, and after a = its key if it is of the rules. No later claim publishes the firing. With a
-- ? before it, it is a guard that timerd may not read: each claim asks again.

-- In a record %, : and ; of a key are written as hex digits.
local SIGNS = { ['%25'] = '%', ['%3A'] = ':', ['%3B'] = ';' }
local function escape(sign) return string.format('%%%02X', string.byte(sign)) end

local function escaped(key) return (string.gsub(key, '[%%:;]', escape)) end

-- guards.options returns the options of a record with the guards of timer_set's UNLESS and IF, nil for none.
function guards.options(unless, only_if)
  local options = unless and ';U=' .. escaped(unless) or ''
  return only_if and options .. ';I=' .. escaped(only_if) or options
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

-- The rules of the caller, in order, nil for none; and the text that they were read from.
local rules, rules_text

-- guards.use reads the caller's rules: for each <p>,<u>,<i>: and, of these lengths, the pattern of the refs of its
-- timers, and what makes of a ref the key of UNLESS and that of IF, or nothing. It keeps them until they change.
function guards.use(text)
  if text == rules_text then return end
  rules, rules_text = nil, text
  local at = 1
  while at <= #text do
    local p, u, i, from = string.match(text, '^(%d+),(%d+),(%d+):()', at)
    local unless, only_if = from + p, from + p + u
    at = only_if + i
    rules = rules or {}
    rules[#rules + 1] = { string.sub(text, from, unless - 1), u ~= '0' and string.sub(text, unless, only_if - 1),
      i ~= '0' and string.sub(text, only_if, at - 1) }
  end
end

local REF = '^%d+:%d*:([^:]*):([^:]*):([^:]*):(.*)$'

-- by_rules returns the keys of the guards that the first rule for a ref has.
local function by_rules(ref)
  for i = 1, #rules do
    local rule = rules[i]
    if string.find(ref, rule[1]) then
      return rule[2] and (string.gsub(ref, REF, rule[2])), rule[3] and (string.gsub(ref, REF, rule[3]))
    end
  end
end

-- The longest key of a guard; rules may make longer ones.
local LONGEST = 1024

-- fails returns the letter of a guard that says no, with a ? before it if timerd may not read the key; or nil.
local function fails(key, letter, wanted)
  if not key then return nil end
  local there = #key <= LONGEST and guards.is_here(key) and redis.pcall('EXISTS', key)
  if type(there) ~= 'number' then return '?' .. letter end
  return there ~= wanted and letter or nil
end

-- verdict returns what a claim notes of a firing. A guard that says no counts before one that cannot be read.
local function verdict(ref, header)
  local unless, only_if, says
  if header ~= '' then unless, only_if = guards.key(header, 'U'), guards.key(header, 'I') end
  local is_own = unless or only_if
  if rules and not is_own then unless, only_if = by_rules(ref) end
  local one, other = fails(unless, 'U', 0), fails(only_if, 'I', 1)
  if one == 'U' or not other then says = one else says = other == 'I' and other or one or other end
  if not says or is_own then return says or '' end
  return says .. '=' .. escaped(string.sub(says, -1) == 'U' and unless or only_if)
end

-- judge returns the record of a claimed firing, with what its guards say; and whether it is another one. perhaps says
-- that the event may have been published: then the guards are not asked.
local function judge(ref, record, perhaps)
  local header, noted = string.match(record, '^[^:]*'), nil
  if header ~= '' then
    noted = string.match(header, ';G=([^;]*)')
    local may_be = rules or noted or string.find(header, ';[UI]=')
    if not may_be or string.find(ref, '^%d+:0:') or noted and string.byte(noted) ~= 63 then return record, false end
  end
  if perhaps and not noted then return record, false end
  local says = verdict(ref, header)
  if says == (noted or '') then return record, false end
  return string.gsub(header, ';G=[^;]*', '', 1) .. (says == '' and '' or ';G=' .. says)
    .. string.sub(record, #header + 1), true
end

-- guards.judge_one judges a firing that a claim has taken, and returns its record.
function guards.judge_one(ref, record, perhaps)
  if not rules and string.byte(record) == 58 then return record end -- as nearly all
  local changed
  record, changed = judge(ref, record, perhaps)
  if changed then index.rewrite_firings({ ref, record }) end
  return record
end

-- guards.judge_all judges firings that were pending, and changes their records in the table.
function guards.judge_all(refs, records)
  local changed = {}
  for i = 1, #records do
    if rules or string.byte(records[i]) ~= 58 then
      local record, is_changed = judge(refs[i], records[i], false)
      if is_changed then
        records[i] = record
        changed[#changed + 1], changed[#changed + 2] = refs[i], record
      end
    end
  end
  if #changed > 0 then index.rewrite_firings(changed) end
end
