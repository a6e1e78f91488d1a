#!lua flags=allow-oom,allow-cross-slot-keys,no-writes
--[[ hold_look looks for held timers in many partitions of one server. It writes nothing.
ARGV    1  the last due time, in ms, of timers of a namespace to report that nobody has looked at yet; 0: none
     2, 3, 4  app, module and type of the namespace, empty for any
        then the hash tags of the partitions
Returns for each partition that has something its hash tag and the number of held timers there, of any namespace, as
text: with half a one more if timers of this one were due by then that no claim has looked at yet; -1 if the partition
is not here as a whole, because its slot is moving. Where too many others wait to look at all (look.lua), some may be of
the namespace, and count so. ]]

local function of_due(member, score) return string.match(member, '^:[^:]*:(.*)$') or member, tonumber(score) end

local function of_firing(ref)
  local due, key = string.match(ref, '^(%d+):%d*:(.*)$')
  return key, tonumber(due)
end

function steps.hold_look(KEYS, ARGV)
  index.begin()
  look.begin()
  local cutoff, app, module, typ = math.min(tonumber(ARGV[1]), clock.due()), ARGV[2], ARGV[3], ARGV[4]
  local out = {}

  local function is_meant(key)
    local a, m, t = string.match(key or '', '^([^:]*):([^:]*):([^:]*):')
    return a ~= nil and (app == '' or app == a) and (module == '' or module == m) and (typ == '' or typ == t)
  end

  -- has_unseen reports whether one of the first members of a sorted set, up to a score, is of the namespace. read
  -- returns the key and the due time of a member and its score.
  local function has_unseen(name, last, read)
    local listed, n, all = look.at(name, '-inf', int(last), math.huge)
    local due
    for i = 1, 2 * n, 2 do
      local key
      key, due = read(listed[i], listed[i + 1])
      if due and due <= cutoff and is_meant(key) then return true end
    end
    -- They are in the order of their due times.
    return not all and (not due or due <= cutoff)
  end

  for i = 5, #ARGV do
    local prefix = PREFIX .. ARGV[i] .. SUFFIX -- never exists, see index.lua
    local due, firing = prefix .. 'due', prefix .. 'firing'
    local here = redis.pcall('EXISTS', due, firing, prefix)
    local count
    if type(here) == 'table' then
      count = -1
    elseif here > 0 then
      local unseen = cutoff > 0 and (has_unseen(due, cutoff, of_due) or has_unseen(firing, 0, of_firing))
      count = redis.call('ZCOUNT', firing, HELD_TEXT, '+inf') + (unseen and 0.5 or 0)
    end
    if count and count ~= 0 then out[#out + 1], out[#out + 2] = ARGV[i], string.format('%.1f', count) end
  end
  return out
end
