-- Judging: a claim asks the guards of timers (guards.lua), and notes their answers in the records.

-- The rules of the caller, in order, nil for none; and the text that they were read from.
local rules, rules_text

-- judging.use reads the caller's rules: for each <p>,<u>,<i>: and, of these lengths, the pattern of the keys of its
-- timers, and the replacements that make of it the keys of UNLESS and IF, or nothing. It keeps them until they change.
function judging.use(text)
  if text == rules_text then return end
  rules, rules_text = nil, text
  local at = 1
  while at <= #text do
    local p, u, i, from = string.match(text, '^(%d+),(%d+),(%d+):()', at)
    local unless, only_if = from + p, from + p + u
    at = only_if + i
    rules = rules or {}
    rules[#rules + 1] = { pattern = string.sub(text, from, unless - 1),
      unless = u ~= '0' and string.sub(text, unless, only_if - 1),
      only_if = i ~= '0' and string.sub(text, only_if, at - 1) }
  end
end

-- by_rules returns the keys of the guards that the first rule for a timer has: of UNLESS and of IF, each nil for none.
local function by_rules(timer)
  for i = 1, #rules do
    local rule = rules[i]
    local key, n = string.gsub(timer, rule.pattern, rule.unless or rule.only_if)
    if n > 0 then
      if not rule.unless then return nil, key end
      return key, rule.only_if and (string.gsub(timer, rule.pattern, rule.only_if)) or nil
    end
  end
end

-- The longest key of a guard; rules may make longer ones.
local LONGEST = 1024

-- ask returns the number of existing keys, each counted as often as it is given; or no number if timerd may not read
-- one. existing is a key of the partition that exists. In a cluster it is asked for with them: Redis refuses keys of
-- another slot beside it, and missing ones while the slot moves. An error would end the claim.
local function ask(existing, ...)
  if not CLUSTER then return redis.pcall('EXISTS', ...) end
  local n = redis.pcall('EXISTS', existing, ...)
  return type(n) == 'number' and n - 1
end

-- fails returns the letter of a guard that says no, with a ? before it if timerd may not read the key; or nil.
local function fails(existing, key, letter, wanted)
  if not key then return nil end
  local there = #key <= LONGEST and ask(existing, key)
  if type(there) ~= 'number' then return '?' .. letter end
  return there ~= wanted and letter or nil
end

-- verdict returns a claim's note on a timer. A guard that says no counts before one that cannot be read.
local function verdict(existing, timer, header)
  local unless, only_if, says
  if header ~= '' then unless, only_if = guards.key(header, 'U'), guards.key(header, 'I') end
  local is_own = unless or only_if
  if rules and not is_own then unless, only_if = by_rules(timer) end
  local one, other = fails(existing, unless, 'U', 0), fails(existing, only_if, 'I', 1)
  if one == 'U' or not other then says = one else says = other == 'I' and other or one or other end
  if not says or is_own then return says or '' end
  return says .. '=' .. guards.escaped(string.sub(says, -1) == 'U' and unless or only_if)
end

-- judge returns the record of a timer with its guards' answers, and whether it has changed. perhaps says that the event
-- may have been published: then the guards are not asked.
local function judge(existing, timer, record, perhaps)
  local header, noted = string.match(record, '^[^:]*'), nil
  if header ~= '' then
    noted = string.match(header, ';G=([^;]*)')
    local may_be = rules or noted or string.find(header, ';[UI]=')
    if not may_be or noted and string.byte(noted) ~= 63 then return record, false end
  end
  if perhaps and not noted then return record, false end
  local says = verdict(existing, timer, header)
  if says == (noted or '') then return record, false end
  return string.gsub(header, ';G=[^;]*', '', 1) .. (says == '' and '' or ';G=' .. says)
    .. string.sub(record, #header + 1), true
end

-- judging.one judges a firing that a claim has taken, and returns its record.
function judging.one(ref, record, perhaps)
  if not rules and string.byte(record) == 58 then return record end -- as nearly all
  local attempt, timer = string.match(ref, '^%d+:(%d*):(.*)$')
  if attempt == '0' then return record end -- a plan
  local changed
  record, changed = judge(run.firing, timer or '', record, perhaps)
  if changed then index.rewrite_firings({ ref, record }) end
  return record
end

-- A record with one guard and no other option, and the same with the key in two parts. The first parts of most keys
-- are equal, and end with a colon.
local ONE, ONE_IN_PARTS = '^;([UI])=([^:;]*):', '^;([UI])=([^:;]*%%3A)([^:;%%]*):'

-- own_guard returns the letter and the key of a record's guard, or nil if the record has not just one. known has the
-- first parts of keys.
local function own_guard(record, known)
  local letter, first, rest = string.match(record, ONE_IN_PARTS)
  if not letter then
    letter, first = string.match(record, ONE)
    return letter, letter and guards.unescaped(first)
  end
  local begin = known[first]
  if not begin then
    begin = guards.unescaped(first)
    known[first] = begin
  end
  return letter, begin .. rest
end

-- rule_guard returns the letter and the key of the guard that a timer has by the rules; false if it has none, and nil
-- if there is more to look at.
local function rule_guard(timer)
  local unless, only_if = by_rules(timer)
  local key = unless or only_if
  if not key then return false end
  if unless and only_if or #key > LONGEST then return nil end
  return unless and 'U' or 'I', key
end

-- ask_threes sets for keys first to last whether they exist, as ask returns it. It gives the first of three keys once,
-- the second twice and the third four times, which tells them apart. At the end one key may stand for two or three.
local function ask_threes(there, keys, first, last)
  for i = first, last, 3 do
    local a, b, c = keys[i], keys[i + 1] or keys[i], keys[i + 2] or keys[i]
    local n = ask(run.due, a, b, b, c, c, c, c)
    if type(n) == 'number' then
      there[i + 2] = n > 3 and 1 or 0
      n = n - 4 * there[i + 2]
      there[i + 1] = n > 1 and 1 or 0
      there[i] = n - 2 * there[i + 1]
    else
      there[i], there[i + 1], there[i + 2] = ask(run.due, a), ask(run.due, b), ask(run.due, c)
    end
  end
end

-- The number of keys in one command, a multiple of three. Mostly all of them exist, or none.
local GROUP = 30

-- ask_all returns for each key whether it exists, as ask does.
local function ask_all(keys)
  local there = {}
  for first = 1, #keys, GROUP do
    local last = math.min(first + GROUP - 1, #keys)
    local n = ask(run.due, unpack(keys, first, last))
    if n == 0 or n == last - first + 1 then
      for i = first, last do there[i] = n == 0 and 0 or 1 end
    else
      ask_threes(there, keys, first, last)
    end
  end
  return there
end

-- The answer of ask for the key of a guard that lets a timer fire.
local LETS_FIRE = { U = 0, I = 1 }

-- note notes in the records at some places what their guards say. Of these records the guard is all that is before the
-- payload, if it is not of a rule.
local function note(records, places, letters, keys)
  local there = ask_all(keys)
  for n = 1, #keys do
    local letter = letters[n]
    if there[n] ~= LETS_FIRE[letter] then
      local record = records[places[n]]
      if type(there[n]) ~= 'number' then letter = '?' .. letter end
      local is_own = string.byte(record) ~= 58
      records[places[n]] = ';G=' .. letter .. (is_own and '' or '=' .. guards.escaped(keys[n])) .. record
    end
  end
end

-- judging.all judges due timers before a claim moves them, and changes their records in the table.
function judging.all(timers, records)
  local known, places, letters, keys, n = nil, nil, nil, nil, 0
  for i = 1, #records do
    local record = records[i]
    local has_options = string.byte(record) ~= 58
    if rules or has_options then
      if not known then known, places, letters, keys = {}, {}, {}, {} end
      local letter, key
      if has_options then letter, key = own_guard(record, known) else letter, key = rule_guard(timers[i]) end
      if letter then
        n = n + 1
        places[n], letters[n], keys[n] = i, letter, key
      elseif letter == nil then
        records[i] = judge(run.due, timers[i], record, false)
      end
    end
  end
  if n > 0 then note(records, places, letters, keys) end
end
