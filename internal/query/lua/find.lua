#!lua flags=allow-oom,allow-cross-slot-keys,no-writes
--[[ find reads the next entries by due time, and for the same due time by name, in many partitions
of one server. It writes nothing.
ARGV    1, 2  the place to begin after: a due time, and a name or an empty string
        3, 4  the bounds of the due times: from, and before or "+inf"
           5  at most how many entries of each sorted set
           6  1 to count all entries, else 0
        then the hash tags of the partitions
Returns {this server's clock in unix ms, partitions left out because their slots are moving, the
number of entries up to the place, the number in all, then for each partition with entries: its hash
tag, the next entries of due, of aside, and of the timers on hold (names and scores in turn), and
the number of other firings}. ]]
index.begin()
local now = clock.due()
local place, name, most, counts = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[5]), ARGV[6] == '1'
local from, before = tonumber(ARGV[3]), ARGV[4]
local moving, looked, total, out = 0, 0, 0, { now, 0, 0, 0 }

-- is_after reports whether a comes after b in byte order, as in a sorted set: Lua itself compares by the locale.
local function is_after(a, b)
  local same, most_same = 0, math.min(#a, #b)
  local bytes = most_same
  while same < most_same do
    local middle = math.ceil((same + most_same) / 2)
    local equal = string.sub(a, same + 1, middle) == string.sub(b, same + 1, middle)
    if equal then same = middle else most_same = middle - 1 end
  end
  if same == bytes then return #a > #b end
  return string.byte(a, same + 1) > string.byte(b, same + 1)
end

-- next_of returns the next entries of a sorted set whose scores are due times plus offset.
local function next_of(key, offset)
  local first = redis.call('ZCOUNT', key, '-inf', '(' .. int(offset + math.max(place, from)))
  if place >= from and name ~= '' then
    local last = first + redis.call('ZCOUNT', key, int(offset + place), int(offset + place))
    while first < last do
      local middle = math.floor((first + last) / 2)
      if is_after(redis.call('ZRANGE', key, middle, middle)[1], name) then last = middle else first = middle + 1 end
    end
  end
  if counts then
    local begin = redis.call('ZCOUNT', key, '-inf', '(' .. int(offset + from))
    local ending = before == '+inf' and before or '(' .. int(offset + tonumber(before))
    looked = looked + first - begin
    total = total + redis.call('ZCOUNT', key, '-inf', ending) - begin
  end
  return redis.call('ZRANGE', key, first, first + most - 1, 'WITHSCORES')
end

for i = 7, #ARGV do
  local prefix = PREFIX .. ARGV[i] .. SUFFIX -- never exists, see index.lua
  local here = redis.pcall('EXISTS', prefix .. 'due', prefix .. 'firing', prefix .. 'aside', prefix)
  if type(here) == 'table' then
    moving = moving + 1
  elseif here > 0 then
    local due = next_of(prefix .. 'due', 0)
    local aside = next_of(prefix .. 'aside', 0)
    local held = next_of(prefix .. 'firing', HELD)
    local firings = redis.call('ZCOUNT', prefix .. 'firing', '-inf', '(' .. HELD_TEXT)
    if #due + #aside + #held + firings > 0 then
      local n = #out
      out[n + 1], out[n + 2], out[n + 3], out[n + 4], out[n + 5] = ARGV[i], due, aside, held, firings
    end
  end
end
out[2], out[3], out[4] = moving, looked, total
return out
