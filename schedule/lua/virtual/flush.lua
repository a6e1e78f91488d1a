#!lua
--[[ flush deletes the keys of timerd dev --virtual, as between two tests. It keeps canaries, marks, the given keys, and
in data the incarnation and the last heartbeat (lib/restored.lua): the data are no older than before.
KEYS    1  data
        then the keys to keep
Returns the number of keys deleted.
If its reply is lost: again it deletes the keys that were set since. ]]

local OF_DATA = { ':i:', ':s:' }

local kept, deleted = {}, 0
for i = 2, #KEYS do kept[KEYS[i]] = true end
local said = redis.pcall('HMGET', KEYS[1], unpack(OF_DATA)) -- an error if somebody has made it of another type
local cursor = '0'
repeat
  local page = redis.call('SCAN', cursor, 'COUNT', 1000)
  cursor = page[1]
  for _, key in ipairs(page[2]) do
    if not kept[key] and not string.find(key, '^timerd:[cm]a') then deleted = deleted + redis.call('DEL', key) end
  end
until cursor == '0'
for i = 1, #OF_DATA do
  if said[i] then redis.call('HSET', KEYS[1], OF_DATA[i], said[i]) end
end
return deleted
