-- include: index
-- count_call counts a call of one of the library's functions that set or cancelled a timer,
-- where no message tells a timerd of it. That it cannot be counted stops no timer.
local function count_call(name) redis.pcall('ZADD', prefix .. 'calls', 'INCR', 1, name) end
