-- The messages of a claim: run.explained has the keys whose timers were claimed, each behind its length; run.nexts, for
-- each partition of a cluster, when something is to be claimed there next, or -1.

-- begin begins a call that claims.
function claims.begin() run.explained, run.nexts = {}, {} end

local NONE = {}

-- claims.note notes claimed timers of a partition: they explain the earlier events of their keys. But a contested timer
-- waits for an event of its key. contested_until is the field :?: of data, and next_due the time of the next claim.
function claims.note(claimed, contested_until, next_due)
  local contested = NONE
  if #claimed > 0 and tonumber(contested_until or 0) > clock.real() then
    local names = {}
    for i = 1, #claimed do names[i] = ':?:' .. claimed[i] end
    contested = redis.call('ZMSCORE', run.due, unpack(names))
  end
  local explained, n = run.explained, #run.explained
  for i = 1, #claimed do
    local key = claimed[i]
    if not contested[i] then
      -- To write a number costs as much as a command: keys of one length in a row share it.
      if #key ~= run.length then run.length, run.length_text = #key, #key .. ':' end
      explained[n + 1], explained[n + 2], n = run.length_text, key, n + 2
    end
  end
  if CLUSTER and #claimed > 0 then run.nexts[#run.nexts + 1] = index.tag() .. ' ' .. (next_due == -1 and '-1'
    or int(next_due)) end
end

-- claims.publish sends the messages to the timerds that hear this server. In a cluster the channel is a sharded one, of
-- a slot of this server: PUBLISH would go to all servers. If several timerds hear it, run.nexts spares the later ones
-- asking each partition in vain.
function claims.publish(channel)
  local heard = #run.explained > 0 and redis.pcall(TELL, channel, CLAIMED .. table.concat(run.explained))
  if #run.nexts > 0 and type(heard) == 'number' and heard > 1 then
    redis.pcall(TELL, channel, NEXT .. int(clock.real()) .. ' ' .. table.concat(run.nexts, ' '))
  end
end
