-- include: names wake clock index announce count_call
-- open_partition_of opens the index of a timer. A Redis that is not a cluster has one
-- partition.
local function open_partition_of() open(PREFIX .. SINGLE .. SUFFIX) end

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

-- How many timerds older_timerd asks about at most, and after what silence one is dead that
-- does not say, in ms.
local MOST_ASKED, USUAL_SILENCE = 100, 4000

-- older_timerd returns the id of a living timerd that does not say that it knows something, or
-- nil. That it may not ask stops no timer.
local function older_timerd(what)
  local members = redis.pcall('ZRANGE', prefix .. 'members', 0, MOST_ASKED - 1, 'WITHSCORES')
  for i = 1, #members, 2 do
    local said = redis.pcall('HGET', prefix .. 'about', members[i]) or ''
    if type(said) == 'string' and not string.find(said, '"' .. what .. '":true', 1, true)
      and now - tonumber(members[i + 1]) < tonumber(string.match(said, '"silence":(%d+)') or USUAL_SILENCE) then
      return members[i]
    end
  end
end
