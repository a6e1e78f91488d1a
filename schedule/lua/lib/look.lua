-- How many names one call looks at, and of how many bytes, about: it takes a ms or two.
local names_left, bytes_left = 1000, 100000

-- How many are read at a time: how long they are is not known before.
local SLICE = 100

-- look returns the first members of a sorted set whose scores lie between two, many at most and
-- as many as there is room for, each followed by its score; how many they are; and whether
-- these are all.
local function look(name, from, to, many)
  local all, n = {}, 0
  while n < many and names_left > 0 and bytes_left > 0 do
    local most = math.min(SLICE, many - n, names_left)
    local listed = redis.call('ZRANGE', name, from, to, 'BYSCORE', 'LIMIT', n, most, 'WITHSCORES')
    for i = 1, #listed, 2 do
      n = n + 1
      all[2 * n - 1], all[2 * n] = listed[i], listed[i + 1]
      bytes_left = bytes_left - #listed[i]
    end
    names_left = names_left - #listed / 2
    if #listed < 2 * most then return all, n, true end
  end
  return all, n, false
end
