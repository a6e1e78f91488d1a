#!lua flags=allow-oom
--[[ end_wait ends the wait of the timers of a restored Redis: they have been compared, or are to fire in any case. They
are free from then on, but for those on hold.
KEYS    1  the partition's prefix
ARGV    1  until which due time they wait, in ms
Returns 1, or 0 if there is no such wait.
If its reply is lost: again it returns 0. ]]

function steps.end_wait(KEYS, ARGV)
  index.open(KEYS[1])
  if not restored.finish(tonumber(ARGV[1])) then return 0 end
  wake.at(0)
  return 1
end
