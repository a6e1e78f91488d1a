-- include: names wake index announce count_call
-- open_partition_of opens the index of a timer. A Redis that is not a cluster has one
-- partition.
local function open_partition_of() open(PREFIX .. SINGLE .. SUFFIX) end

-- The flags of the functions that announce_set is called by.
local SET_FLAGS = {}

-- announce_set announces a timer that has just been set, with its key and the database: the
-- events of that are explained. Only a timer that may be contested is to learn of them.
-- due_text is due as int writes it. A timerd that hears the message counts the timer.
local function announce_set(key, due, due_text, contested)
  local database, heard = not contested and redis.pcall('GET', prefix .. 'database'), 0
  if type(database) == 'string' then
    heard = redis.pcall('PUBLISH', WAKE, SINGLE .. ' ' .. due_text .. ' ' .. database .. ' ' .. key)
  else
    announce_first(key, due)
  end
  if type(heard) ~= 'number' or heard == 0 then count_call('timer_set') end
end

-- announce_owed announces that something is owed.
local function announce_owed() announce(0) end
