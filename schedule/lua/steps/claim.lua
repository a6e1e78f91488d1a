#!lua flags=allow-oom,allow-cross-slot-keys
--[[ claim claims firings for a lease, from many partitions of one server. From each it takes, in this order, firings
that are owed, firings whose lease is over, and timers that are due. Held timers it moves to where no claim looks,
unless they may have been published. It also removes old tombstones. Where all is as usual it looks no further
(lib/quick.lua).
KEYS    none; or the prefix of the only partition, so that Redis refuses the step on a server without it
ARGV    1  lease in ms
        2  the greatest number of firings
        3  the greatest number of bytes of payload; one firing is claimed in any case
        4  the generation of the list of holds that the caller knows, 0 if nothing is held
        5  the greatest number of firings of one partition, where all is as usual
        6  the time for which due timers are left to others, in ms, where all is as usual
        7  the channel of the messages about claimed timers
        8  the rules of guards for timers without one of their own (lib/judging.lua)
        9  the greatest age of the last heartbeat, in ms, at which JetStream drops second events, should this server
           turn out to be another one (lib/restored.lua)
        then for each partition its prefix; "usual", "leases" if a lease may be over, or "full" to look at all; the
        time since which the caller has heard every event, in ms; and the last claim's looked, or an empty string
Returns {seconds, microseconds, then for each partition, as far as there was room, names and values; or the error that
ended the claim from it}. The first two are the time of the claim. The names are
  next         the time of the next claim, in ms: a due time, the end of a lease, 0 for at once, or -1
  full         1 if it looked at all; then next may be the end of a lease in a cluster too
  rescheduled, cancelled, aside, aside_key
               the numbers of due timers that had another TTL, had lost it, or were set aside, and the key of one of
               those
  looked       the last place of its look for free timers among held ones: an argument of the next claim
  waited_until, last_seen, waited
               of the last wait of timers of a restored Redis: its last due time, the last heartbeat of a timerd in
               the data, and its length, 0 if nothing had to be compared
  untidy       1 if more tombstones are to be removed
  owed, freed, kept, reclaimed, due
               the firings of a kind, a list: a ref and a record each. They were owed; freed by a resume or given
               back with a pause; given back though perhaps published; claimed before; or pending
Zeros and empty texts are left out. If the data of a server of a cluster are not compared, it returns an error that
begins with RESTORED. An error that begins with BEHIND says that the partition's list of holds is older than the
caller's; one that begins with AWAY, that it is not here as a whole, because its slot is moving. Then nothing was done.
If its reply is lost: the firings stay claimed until the lease ends. Then the next claim has them, as reclaimed. ]]

-- A call in TRIM_EACH removes old tombstones: TRIM at most for each firing that all these calls may have added. A
-- firing adds two at most, so none pile up.
local TRIM, TRIM_EACH = 2.5, 8

-- A look at all of a partition takes as long as LOOK firings at least. To move held timers takes as long as a claim.
local LOOK = 4

-- trim removes tombstones that are older than the caller's lease and REMEMBER. It returns whether there are more.
local function trim(of)
  of.old = of.old or int(clock.real() - clock.REMEMBER - of.lease)
  local old = redis.call('ZCOUNT', run.fired, '-inf', of.old)
  local some = math.min(old, of.trims)
  if some > 0 then redis.call('ZREMRANGEBYRANK', run.fired, 0, some - 1) end
  of.trims = of.trims - some
  return old > some
end

-- claim_all claims whatever there is.
local function claim_all(of, since, looked)
  local here = CLUSTER and redis.pcall('EXISTS', run.prefix, run.due)
  if type(here) == 'table' then return redis.error_reply('AWAY timerd: ' .. here.err) end
  local t, behind = taken.begin(of, since)
  if behind then return behind end
  free.claim(t)
  looked = ripe.claim(t, looked)
  free.unlist(t)
  local next_due, lease = index.head(), tonumber(redis.call('ZRANGE', run.firing, 0, 0, 'WITHSCORES')[2])
  if next_due == -1 and not lease then
    meta.tidy()
    restored.tidy()
  end
  if lease and (next_due == -1 or lease < next_due) then next_due = lease end
  claims.note(t.keys, t.contested_until, next_due)
  of.limit, of.room = t.moved > 0 and 0 or of.limit - math.max(t.looked, LOOK), t.room
  return taken.reply(t, next_due, looked)
end

-- claim_from claims from a partition, and returns its part of the reply.
local function claim_from(of, prefix, way, since, looked)
  index.enter(prefix)
  run.beside_others = nil -- nobody has asked yet
  local part = way ~= 'full' and quick.claim(of, way == 'leases') or claim_all(of, since, looked)
  if not part.err and (of.is_tidying or way == 'full') and trim(of) then
    part[#part + 1], part[#part + 2] = 'untidy', 1
  end
  return part
end

function steps.claim(_, ARGV)
  index.begin()
  claims.begin()
  judging.use(ARGV[8])
  if CLUSTER and not restored.is_compared(ARGV[10]) then
    return redis.error_reply('RESTORED timerd: the data of this server may be older than before')
  end
  local lease, seconds, micros = tonumber(ARGV[1]), clock.due_time()
  local of = {
    lease = lease, lease_ends = clock.due() + lease, lease_end = false,
    limit = tonumber(ARGV[2]), room = tonumber(ARGV[3]),
    generation = tonumber(ARGV[4]), forgiven = ARGV[9], most = tonumber(ARGV[5]), most_text = ARGV[5],
    due_until = clock.due() - tonumber(ARGV[6]),
    trims = TRIM * TRIM_EACH * tonumber(ARGV[2]), is_tidying = tonumber(micros) % TRIM_EACH == 0,
    old = false,
  }
  local reply = { seconds, micros }
  for i = 11, #ARGV, 4 do
    if of.limit <= 0 or of.room <= 0 or run.spent > BUDGET then break end
    -- A partition that somebody has overwritten must not stop the others.
    local fine, part = pcall(claim_from, of, ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3])
    reply[#reply + 1] = fine and part or type(part) == 'table' and part or { err = part }
  end
  claims.publish(ARGV[7])
  return reply
end
