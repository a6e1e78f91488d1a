-- calls.count counts a call of a library function that set or cancelled a timer without a message to a timerd. A
-- failure to count stops no timer.
function calls.count(name) redis.pcall('ZADD', run.prefix .. 'calls', 'INCR', 1, name) end
