-- wake.at tells the timerds when there is something to claim: 0 for at once.
function wake.at(due) redis.pcall('PUBLISH', WAKE, index.tag() .. ' ' .. int(due)) end

-- wake.if_first announces a member that has become the first to be due, unless it is so far off that the timerds find
-- it by themselves. It comes after the writes, so it fails none of them.
function wake.if_first(member, due)
  if due <= clock.due() + WAKE_WITHIN and redis.pcall('ZRANGE', run.due, 0, 0)[1] == member then wake.at(due) end
end
