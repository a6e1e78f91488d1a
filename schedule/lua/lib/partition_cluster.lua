-- partition.open opens the index of a timer, which is in the slot of the timer's key. While the slot moves from one
-- server to another, each has only some of the keys; an access to a key that is elsewhere would end the function in the
-- middle of its writes. So it first asks for two keys at once; one of them never exists. Redis refuses that on both
-- servers for as long as the slot moves. Then partition.open returns an error reply that makes the client try again;
-- otherwise nil.
function partition.open(key)
  index.begin()
  index.enter(PREFIX .. hash_tag.of(redis.call('CLUSTER', 'KEYSLOT', key)) .. SUFFIX)
  if type(redis.pcall('EXISTS', run.due, run.prefix)) == 'table' then
    return redis.error_reply('TRYAGAIN timerd: the slot of the key is moving to another server')
  end
end

-- The flags of the functions that call partition.announce_set: a channel has a slot as a key has.
partition.SET_FLAGS = { 'allow-cross-slot-keys' }

-- partition.announce_set announces a timer that was just set, with its key: this explains the key's events. A contested
-- timer needs them, so it is announced without its key. due_text is due as int writes it. A timerd that hears the
-- message counts the timer. It goes to this server alone; if nobody listens there, PUBLISH, which goes to all servers,
-- announces a timer that is the first to be due.
function partition.announce_set(key, due, due_text, contested)
  noted.note(contested and 0 or due)
  local heard = not contested and noted.channel
    and redis.pcall('SPUBLISH', noted.channel, index.tag() .. ' ' .. due_text .. ' 0 ' .. key) or 0
  if type(heard) == 'number' and heard > 0 then return end
  wake.if_first(key, due)
  calls.count('timer_set')
end

-- partition.announce_owed announces that something is owed.
function partition.announce_owed()
  noted.note(0)
  wake.at(0)
end
