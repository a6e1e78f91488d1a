-- partition.open opens the index of a timer. A Redis that is not a cluster has one partition.
function partition.open() index.open(PREFIX .. SINGLE .. SUFFIX) end

-- The flags of the functions that call partition.announce_set.
partition.SET_FLAGS = {}

-- partition.announce_set announces a timer that was just set, with its key and the database: this explains the key's
-- events. A contested timer needs them, so it is announced without its key. due_text is due as int writes it. A timerd
-- that hears the message counts the timer.
function partition.announce_set(key, due, due_text, contested)
  local database, heard = not contested and redis.pcall('GET', run.prefix .. 'database'), 0
  if type(database) == 'string' then
    heard = redis.pcall('PUBLISH', WAKE, SINGLE .. ' ' .. due_text .. ' ' .. database .. ' ' .. key)
  else
    wake.if_first(key, due)
  end
  if type(heard) ~= 'number' or heard == 0 then calls.count('timer_set') end
end

-- partition.announce_owed announces that something is owed.
function partition.announce_owed() wake.at(0) end
