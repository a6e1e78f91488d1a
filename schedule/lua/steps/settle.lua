#!lua flags=allow-oom,allow-cross-slot-keys
--[[ settle forgets firings.
KEYS    1  the partition's prefix; or none, for many partitions of one server
ARGV    the kind of their end in the account, and their refs; or for each partition, once for each kind, its prefix,
        the kind, the number of refs, and these
Returns, for many partitions, the places of the refusing ones: they are not here as a whole, because their slots are
moving, or a key of theirs is of another type. Their firings stay.
If its reply is lost: again it changes nothing. If it never ran: the firings are claimed and published again once their
leases end. ]]

-- settle_in forgets firings of a partition by a kind. It returns Redis's error if the partition is not here.
local function settle_in(prefix, kind, refs)
  index.enter_firings(prefix)
  local listed = redis.pcall('EXISTS', prefix, prefix .. 'refused', prefix .. 'owed')
  if type(listed) ~= 'number' then return listed end
  index.end_firings(refs, listed > 0, kind)
end

function steps.settle(KEYS, ARGV)
  index.begin_timeless()
  if KEYS[1] then return settle_in(KEYS[1], ARGV[1], { unpack(ARGV, 2) }) or {} end
  local away, place, i = {}, 0, 1
  while i < #ARGV do
    local last = i + 2 + tonumber(ARGV[i + 2])
    place = place + 1
    local fine, refusal = pcall(settle_in, ARGV[i], ARGV[i + 1], { unpack(ARGV, i + 3, last) })
    if not fine or refusal then away[#away + 1] = place end
    i = last + 1
  end
  return away
end
