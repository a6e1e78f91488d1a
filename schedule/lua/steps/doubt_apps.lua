#!lua flags=allow-oom
--[[ doubt_apps forgets apps without timers after an audit of all timers of a partition. An app that the audit has not
met is doubted at first. When the next audit does not meet it either, and nobody has set a timer of it since, it is
forgotten: that audit has met every timer set before the doubt that still waits.
KEYS    1  the partition's prefix
ARGV    1  when the audit began at the earliest, in ms
        then the apps that it has met
Returns the number of apps forgotten.
If its reply is lost: again it changes nothing more. ]]

function steps.doubt_apps(KEYS, ARGV)
  index.open(KEYS[1])
  return (apps.doubt(tonumber(ARGV[1]), { unpack(ARGV, 2) }))
end
