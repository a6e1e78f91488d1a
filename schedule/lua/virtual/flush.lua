#!lua
--[[ flush deletes the keys of timerd dev --virtual, as between two tests. It keeps canaries, marks and the given keys.
KEYS    the keys to keep
Returns how many it has deleted.
If its reply is lost: again it deletes the keys that were set since. ]]

local kept, deleted = {}, 0
for i = 1, #KEYS do kept[KEYS[i]] = true end
local cursor = '0'
repeat
  local page = redis.call('SCAN', cursor, 'COUNT', 1000)
  cursor = page[1]
  for _, key in ipairs(page[2]) do
    if not kept[key] and not string.find(key, '^timerd:[cm]a') then deleted = deleted + redis.call('DEL', key) end
  end
until cursor == '0'
return deleted
