-- Limits of a call: the names, and about their bytes. It takes a ms or two.
local NAMES, BYTES = 1000, 100000

-- begin begins a call that looks. run.names_left and run.bytes_left are the room left.
function look.begin() run.names_left, run.bytes_left = NAMES, BYTES end

-- Names read at a time, as their lengths are unknown before.
look.SLICE = 100

-- look returns the first members of a sorted set whose scores lie between two, many at most and as many as there is
-- room for, each followed by its score; their number; and whether these are all.
function look.at(name, from, to, many)
  local all, n = {}, 0
  while n < many and run.names_left > 0 and run.bytes_left > 0 do
    local most = math.min(look.SLICE, many - n, run.names_left)
    local listed = redis.call('ZRANGE', name, from, to, 'BYSCORE', 'LIMIT', n, most, 'WITHSCORES')
    for i = 1, #listed, 2 do
      n = n + 1
      all[2 * n - 1], all[2 * n] = listed[i], listed[i + 1]
      run.bytes_left = run.bytes_left - #listed[i]
    end
    run.names_left = run.names_left - #listed / 2
    if #listed < 2 * most then return all, n, true end
  end
  return all, n, false
end
