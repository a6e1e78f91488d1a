#!lua flags=allow-oom
-- include: owed score
--[[ tidy_owed removes names from a page of owed whose firings are claimed or settled: earlier
versions leave the names behind.
KEYS    1  the partition's prefix
ARGV    1  cursor; 0 begins
        2  how many names to look at, roughly
Returns the next cursor, 0 at the end.
If its reply is lost: again it changes nothing more. ]]
local page = redis.call('ZSCAN', KEYS[1] .. 'owed', ARGV[1], 'COUNT', ARGV[2])
local names = page[2]
for i = 1, #names, 2 do
  local score = tonumber(redis.call('ZSCORE', KEYS[1] .. 'firing', owed_ref(names[i])) or nil)
  if not score or not is_unclaimed(score) then redis.call('ZREM', KEYS[1] .. 'owed', names[i]) end
end
return page[1]
