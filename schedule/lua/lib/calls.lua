-- calls.count counts a call of one of the library's functions that set or cancelled a timer, where no message tells a
-- timerd of it. That it cannot be counted stops no timer.
function calls.count(name) redis.pcall('ZADD', run.prefix .. 'calls', 'INCR', 1, name) end
