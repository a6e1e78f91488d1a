-- include: wake claimed clock index
-- publish_claimed tells the timerds which keys' timers were claimed, each with its length
-- before it, unless this is a cluster: what happened to these keys until then is explained.
-- But a contested timer waits for an event of its key. contested_until is what data has in
-- the field :?:. CLAIMED is what begins the message, or empty in a cluster.
local function publish_claimed(claimed, contested_until)
  if CLAIMED == '' or #claimed == 0 then return end
  local told, contested = {}, {}
  if tonumber(contested_until or 0) > now then
    for i = 1, #claimed do told[i] = ':?:' .. claimed[i] end
    contested = redis.call('ZMSCORE', due_key, unpack(told))
  end
  for i = 1, #claimed do told[i] = contested[i] and '' or #claimed[i] .. ':' .. claimed[i] end
  redis.pcall('PUBLISH', WAKE, CLAIMED .. table.concat(told))
end
