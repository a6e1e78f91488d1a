-- include: names hash_tag index announce count_call noted
-- open_partition_of opens the index of a timer, which is in the slot of the timer's
-- key. While the slot moves from one server to another, each has only some of the keys;
-- an access to a key that is elsewhere would end the function in the middle of its
-- writes. So it first asks for two keys at once, of which one never exists. Redis
-- refuses that on both servers for as long as the slot moves. Then open_partition_of
-- returns an error reply that makes the client try again; otherwise nil.
local function open_partition_of(key)
  open(PREFIX .. hash_tag(redis.call('CLUSTER', 'KEYSLOT', key)) .. SUFFIX)
  if type(redis.pcall('EXISTS', due_key, prefix)) == 'table' then
    return redis.error_reply('TRYAGAIN timerd: the slot of the key is moving to another server')
  end
end

-- The flags of the functions that announce_set is called by: a channel is in a slot, too.
local SET_FLAGS = { 'allow-cross-slot-keys' }

-- announce_set announces a timer that has just been set, with its key: the events of that are
-- explained, but for one that may be contested, which is to learn of them. due_text is due as int
-- writes it. A timerd that hears the message counts the timer. It goes to this server alone; where
-- none listens there, PUBLISH, which goes to all of them, tells of what is first to be due.
local function announce_set(key, due, due_text, contested)
  note(contested and 0 or due)
  local heard = not contested and told_on and redis.pcall('SPUBLISH', told_on, tag_of() .. ' ' .. due_text .. ' 0 ' .. key) or 0
  if type(heard) == 'number' and heard > 0 then return end
  announce_first(key, due)
  count_call('timer_set')
end

-- announce_owed announces that something is owed.
local function announce_owed()
  note(0)
  announce(0)
end
