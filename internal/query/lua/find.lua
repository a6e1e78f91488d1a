#!lua flags=allow-oom,allow-cross-slot-keys,no-writes
--[[ find reads what comes next in the order of due times, and of the same due time in that of
the names, in many partitions of one server. It writes nothing.
ARGV    1, 2  the place after which to begin: a due time, and a name or an empty string
        3, 4  the due times from which and before which, or "+inf"
           5  how many entries of each sorted set at most
           6  1 if what there is is to be counted, else 0
        then the hash tags of the partitions
Returns {this server's clock in unix ms, how many partitions are not here as a whole, because
their slots are moving, how many entries there are up to the place, how many in all, then for
each partition with something its hash tag, the next entries of due, of aside, and of what is
held: names and scores in turn, and how many other firings there are}. ]]
local now = clock.read()
local place, name, most, counts = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[5]), ARGV[6] == '1'
local from, before = tonumber(ARGV[3]), ARGV[4]
local moving, looked, total, out = 0, 0, 0, { now, 0, 0, 0 }

-- is_after tells whether a text comes after another in the order of their bytes, as in a sorted
-- set: Lua compares by the locale.
local function is_after(a, b)
  local same, most_same = 0, math.min(#a, #b)
  local bytes = most_same
  while same < most_same do
    local middle = math.ceil((same + most_same) / 2)
    if string.sub(a, same + 1, middle) == string.sub(b, same + 1, middle) then same = middle else most_same = middle - 1 end
  end
  if same == bytes then return #a > #b end
  return string.byte(a, same + 1) > string.byte(b, same + 1)
end

-- next_of returns the next entries of a sorted set, whose scores are due times plus offset.
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
