-- Firings open to any claim: owed, freed by a resume, given back, or with a lease that is over.

-- kind_of returns the kind of a free firing, by its score.
local function kind_of(score)
  if score == 0 then return 'owed' end
  return scores.may_be_published(score) and 'kept' or scores.is_unclaimed(score) and 'freed' or 'reclaimed'
end

-- hold holds an owed firing. It is no longer to become a dead letter.
local function hold(t, ref, due, record)
  index.rescore({ int(HELD + due), ref })
  if string.find(entry.flags(record), 'h', 1, true) then
    index.rewrite_firings({ ref, (string.gsub(record, 'h', '', 1)) })
  end
  t.room = t.room - #record
end

-- wait makes a firing that cannot have been published wait for the comparison of a restored Redis. If it was to become
-- a dead letter, it still is.
local function wait(t, ref, due, record)
  index.rescore({ int(HELD + due), ref })
  t.room = t.room - #record
end

-- claim_one claims a firing, or holds it. leases and tombstones are arguments of the ZADD that follow. One that may
-- have been published neither waits nor is held: its publisher looks for the event in the stream.
local function claim_one(t, ref, record, score, leases, tombstones)
  local due, attempt, key = string.match(ref, '^(%d+):(%d*):(.*)$')
  local kind, to_plan = kind_of(score), attempt == '0'
  local may_wait = (kind == 'owed' or kind == 'freed') and key and not to_plan and not guards.is_refused(record)
  if may_wait and tonumber(due) <= t.waits_until then return wait(t, ref, due, record) end
  -- A firing that a resume has released stays so, also after a pause: an infinite due time lies within no resume.
  if may_wait and t.is_held and t.is_held(key, kind == 'freed' and math.huge or tonumber(due)) then
    return hold(t, ref, due, record)
  end
  t.refs[#t.refs + 1] = ref
  leases[#leases + 1], leases[#leases + 2] = t.lease_end, ref
  if not to_plan then firings.add_tombstones(tombstones, key or ref, due or '0', entry.attempt(record), record) end
  taken.add(t, kind, ref, record)
end

-- claim_group claims firings, each followed by its score, as far as there is room.
local function claim_group(t, listed, first, last)
  local refs, leases, tombstones = {}, {}, {}
  for i = first, last, 2 do refs[#refs + 1] = listed[i] end
  local fits = sizes.fitting(run.firingdata, refs, t.room)
  local records = redis.call('HMGET', run.firingdata, unpack(refs, 1, fits))
  for i = 1, fits do
    claim_one(t, refs[i], records[i] or 'm:', tonumber(listed[first + 2 * i - 1]), leases, tombstones)
  end
  if #leases > 0 then index.rescore(leases) end
  if #tombstones > 0 then redis.call('ZADD', run.fired, unpack(tombstones)) end
  if fits < #refs then t.room = 0 end
end

-- claim claims free firings. While timers are due, these have half of a claim at most: they may have been given back
-- because they cannot be published.
function free.claim(t)
  local listed = redis.call('ZRANGEBYSCORE', run.firing, '-inf', clock.due_text(), 'WITHSCORES', 'LIMIT', 0, t.limit)
  local some, half = #listed / 2, math.ceil(t.limit / 2)
  if some > half and redis.call('ZCOUNT', run.due, '-inf', clock.due_text()) > 0 then some = half end
  t.looked = t.looked + some
  for first = 1, 2 * some, 2 * firings.GROUP do
    if t.room <= 0 then break end
    claim_group(t, listed, first, math.min(first + 2 * firings.GROUP, 2 * some + 1) - 1)
  end
end

-- unlist takes the claimed firings out of owed. Until then other firings of their keys, claimed with them, find them
-- there.
function free.unlist(t)
  if not run.beside_others then return end -- there is no list
  for first = 1, #t.refs, firings.GROUP do
    owing.unlist({ unpack(t.refs, first, math.min(first + firings.GROUP - 1, #t.refs)) })
  end
end
