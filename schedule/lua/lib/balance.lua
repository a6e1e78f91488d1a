-- The balance of a partition: its account beside the timers there. Only timerd reads it.

-- The kinds beside: the timers at the start of the account, its time in unix ms, and the timers fired in earlier
-- accounts.
balance.OPENING, balance.BEGAN, balance.EARLIER = 'o', 'b', 'p'

-- 1 for kinds that add timers, -1 for kinds that take them away.
local SIGNS = { s = 1, a = 1, r = 1, n = 1, f = -1, c = -1, x = -1, d = -1, l = -1, g = -1, k = -1, e = -1 }

-- balance.read returns the partition's account, kinds and counts one after the other; the opening, or nil before it has
-- begun; and the growth since then by the counts.
function balance.read()
  local listed = redis.call('ZRANGE', run.prefix .. 'account', 0, -1, 'WITHSCORES')
  local opening, change = nil, 0
  for i = 1, #listed, 2 do
    if listed[i] == balance.OPENING then opening = tonumber(listed[i + 1]) end
    change = change + (SIGNS[listed[i]] or 0) * tonumber(listed[i + 1])
  end
  return listed, opening, change
end

-- balance.fired returns the number of timers fired by an account, a result of balance.read, and earlier ones.
function balance.fired(listed)
  local n = 0
  for i = 1, #listed, 2 do
    if listed[i] == 'f' or listed[i] == balance.EARLIER then n = n + tonumber(listed[i + 1]) end
  end
  return n
end

-- balance.look returns the number of sets of the partition: its account, due, firing and those of parked timers; or an
-- error, if it is not here as a whole.
function balance.look()
  return redis.pcall('EXISTS', run.prefix, run.prefix .. 'account', run.due, run.firing, run.prefix .. 'aside',
    run.prefix .. 'refused')
end

-- balance.there returns the numbers of timers in due and in firing, and whether some may be parked. sets is the result
-- of balance.look for a partition with an account: most have only that and due.
function balance.there(sets)
  local due = redis.call('ZCARD', run.due)
  if sets == 2 and due > 0 then return due, 0, false end
  return due, redis.call('ZCARD', run.firing), true
end
