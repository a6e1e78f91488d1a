#!lua
--[[ flush deletes the keys of timerd dev --virtual, as between two tests. It keeps canaries, marks and the given keys.
KEYS    the keys to keep
Returns how many it has deleted.
If its reply is lost: again it deletes the keys that were set since. ]]

local kept, deleted = {}, 0
for i = 1, #KEYS do kept[KEYS[i]] = true end
local all = redis.call('KEYS', '*')
for i = 1, #all do
  if not kept[all[i]] and not string.find(all[i], '^timerd:[cm]a') then
    deleted = deleted + redis.call('DEL', all[i])
  end
end
return deleted
