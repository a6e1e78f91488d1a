-- include: claimed clock index
-- What publish_claimed says: the keys whose timers were claimed, each with its length before it.
local explained = {}

-- note_claimed notes that timers of a partition were claimed: what happened to their keys until
-- then is explained. But a contested timer waits for an event of its key. contested_until is what
-- data has in the field :?:.
local function note_claimed(claimed, contested_until)
  local contested = {}
  if #claimed > 0 and tonumber(contested_until or 0) > now then
    local names = {}
    for i = 1, #claimed do names[i] = ':?:' .. claimed[i] end
    contested = redis.call('ZMSCORE', due_key, unpack(names))
  end
  for i = 1, #claimed do
    if not contested[i] then explained[#explained + 1] = #claimed[i] .. ':' .. claimed[i] end
  end
end

-- publish_claimed tells the timerds that hear this server of what was noted. In a cluster it is a
-- sharded channel, of a slot of this server: PUBLISH would go to all of them.
local function publish_claimed(channel)
  if #explained > 0 then redis.pcall(TELL, channel, CLAIMED .. table.concat(explained)) end
end
