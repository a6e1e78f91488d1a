-- announce tells the timerds when there is something to claim: 0 for at once.
local function announce(due)
  redis.pcall('PUBLISH', WAKE, string.sub(prefix, #PREFIX + 1, -#SUFFIX - 1) .. ' ' .. int(due))
end

-- announce_first announces a member that has become the first to be due, unless it is
-- so far off that the timerds find it by themselves.
local function announce_first(member, due)
  if due <= now + WAKE_WITHIN and redis.call('ZRANGE', due_key, 0, 0)[1] == member then announce(due) end
end
