#!lua flags=allow-oom,allow-cross-slot-keys
--[[ claim_short is claim's short way, for many partitions of one server: it claims what is due where
all of it is as usual. It does what claim would do; where anything else is to be done it changes
nothing in that partition.
ARGV    1  lease in ms
        2  how many firings at most
        3  how many bytes of payload at most
        4  the generation of the list of holds that the caller knows, 0 if nothing is held
        5  how many firings of one partition at most
        6  for how long what is due is left to others, in ms
        7  the channel on which the timerds are told what was claimed
        then for each partition its prefix, and 1 if a lease may be over, else 0
Returns {seconds, microseconds, then for each partition, as far as there was room, {next, then for
each firing its ref and its record}, all as claim does, or an empty array where claim has to be
called: if something is owed or a lease is over, if more is to be done for a member than to claim
it, if a key cannot be read or has another TTL, if another firing has the ref, if a record is
large, if one of the timers is held, if the list of holds is older than the caller's, if the
partition is not here as a whole, because its slot is moving; or the error that ended the claim from a
partition. In a cluster it looks for leases that are over where it is told so, where something is
owed, and where nothing is due; and next leaves out when leases end, unless something is owed: the
scans for due timers find that, and each firing would be looked for once more.
If its reply is lost: as for claim. ]]

-- How many old tombstones a claim from a partition of a cluster removes at most, if it is one of TRIM_EACH
-- calls. Of a single Redis claim removes them.
local TRIM, TRIM_EACH = 128, 8

-- They are the first of due: so this costs half of what ZREM does.
local function take_out(count) redis.call('ZREMRANGEBYRANK', run.due, 0, count - 1) end

function steps.claim_short(KEYS, ARGV)
  local limit, room, most, generation = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[5]), tonumber(ARGV[4])
  index.begin()
  claims.begin()
  local due_until, lease_end = run.now - tonumber(ARGV[6]), int(run.now + tonumber(ARGV[1]))

  local removes = CLUSTER and tonumber(run.time[2]) % TRIM_EACH == 0

  -- Whether a large record was read: from then on it is asked before how large they are.
  local seen_large = false

  -- read_records returns the records of n members, how many bytes are left for more, and what data has in the field
  -- :?:; or nil where the short way does not do. is_held_by is called with a list of holds, if there may be one.
  local function read_records(members, n, is_held_by)
    local fields = { ':l:', ':?:', ':h:' }
    if n == 1 and not seen_large then fields[4] = members[1] end
    local said = redis.call('HMGET', run.data, unpack(fields))
    local may_be_large, contested_until = said[1], said[2]
    if (said[3] or generation > 0) and is_held_by(said[3]) then return nil end
    if #said == 4 then
      local record = said[4] or 'm:'
      seen_large = #record > index.LARGE
      if seen_large or #record > room then return nil end
      return { record }, room - #record, contested_until
    end
    local records, left = {}, room
    for first = 1, n, firings.GROUP do
      local last = math.min(first + firings.GROUP - 1, n)
      for i = first, may_be_large and last or 0 do
        if redis.call('HSTRLEN', run.data, members[i]) > index.LARGE then return nil end
      end
      local group = redis.call('HMGET', run.data, unpack(members, first, last))
      for i = 1, #group do
        local record = group[i] or 'm:'
        records[#records + 1] = record
        left = left - #record
      end
      if left < 0 then return nil end
    end
    return records, left, contested_until
  end

  -- claim_from claims from a partition. It returns its part of the reply, or nil.
  local function claim_from(partition_prefix, leases)
    index.enter(partition_prefix)
    local look = math.min(limit, most)
    local listed = redis.pcall('ZRANGE', run.due, 0, look, 'WITHSCORES')
    if listed.err then return nil end
    local members, dues, n, next_due = {}, {}, 0, math.huge
    for i = 1, #listed, 2 do
      local member, due = listed[i], listed[i + 1]
      if n == look or tonumber(due) > due_until then
        next_due = tonumber(due)
        break
      end
      if string.byte(member) == 58 then return nil end
      n = n + 1
      -- A score is in full as it is, except for some round ones.
      members[n], dues[n] = member, string.find(due, '^%d+$') and due or int(tonumber(due))
    end

    -- None of these keys should exist. But in the ms of its due time Redis still has a timer's.
    local others, still, delete = 0, redis.pcall('EXISTS', run.prefix, run.prefix .. 'owed', run.prefix .. 'beside', unpack(members)), {}
    if type(still) ~= 'number' then return nil end
    if still > 0 then
      others = redis.call('EXISTS', run.prefix .. 'owed', run.prefix .. 'beside')
      still = still - others
    end
    run.beside_others = others > 0
    if not CLUSTER or leases or others > 0 or n == 0 then
      local first = tonumber(redis.call('ZRANGE', run.firing, 0, 0, 'WITHSCORES')[2] or HELD)
      if first <= run.now then return nil end
      if not CLUSTER then
        next_due = math.min(first, tonumber(lease_end), next_due)
      elseif others > 0 and first < HELD then
        next_due = math.min(first, next_due)
      end
    end
    for i = n, 1, -1 do
      local due = tonumber(dues[i])
      -- Redis may have read the clock for EXISTS before the script did.
      if #delete == still or due < run.now - 1 then break end
      if redis.pcall('PEXPIRETIME', members[i]) == due then delete[#delete + 1] = members[i] end
    end
    if #delete < still then return nil end

    local out = { next_due < math.huge and next_due or -1 }
    local old = removes and redis.call('ZCOUNT', run.fired, '-inf', int(run.now - clock.REMEMBER - tonumber(ARGV[1]))) or 0
    if old > 0 then redis.call('ZREMRANGEBYRANK', run.fired, 0, math.min(old, TRIM) - 1) end
    if n == 0 then return out end

    local records, left, contested_until = read_records(members, n, function(list)
      local known, held = holds.read(list)
      if known < generation then return true end
      for i = 1, held and n or 0 do
        if held(members[i], tonumber(dues[i])) then return true end
      end
      return false
    end)
    if not records then return nil end
    local refs = firings.move(members, dues, records, lease_end, nil, take_out)
    if not refs then return nil end
    if #delete > 0 then redis.pcall('DEL', unpack(delete)) end
    claims.note(members, contested_until, out[1])
    limit, room = limit - n, left
    for i = 1, n do out[2 * i], out[2 * i + 1] = refs[i], records[i] end
    return out
  end

  local reply = { run.time[1], run.time[2] }
  for i = 8, #ARGV, 2 do
    if limit == 0 then break end
    -- A partition that is broken, as somebody has written there, is none of the others' business.
    local fine, part = pcall(claim_from, ARGV[i], ARGV[i + 1] == '1')
    if not fine and type(part) ~= 'table' then part = { err = part } end
    reply[#reply + 1] = part or {}
  end
  claims.publish(ARGV[7])
  return reply
end
