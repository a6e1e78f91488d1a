-- The clocks of timerd dev --virtual, in place of lib/clock.lua. The clock due is ahead of Redis's by so many ms as the
-- string ahead says, which only the step advance changes. The clock real is Redis's.

-- The lifetime of a tombstone, in ms.
clock.REMEMBER = 60000

-- The name of that string.
clock.AHEAD = PREFIX .. SINGLE .. SUFFIX .. 'ahead'

-- begin reads the time. index.begin calls it.
function clock.begin()
  local t, ahead = redis.call('TIME'), tonumber(redis.call('GET', clock.AHEAD) or 0)
  local now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
  run.time, run.real, run.real_text = t, now, int(now)
  run.now, run.now_text = now + ahead, int(now + ahead)
end

-- due and real return the time of the clocks; due_text and real_text the same in text.
function clock.due() return run.now end
function clock.due_text() return run.now_text end
function clock.real() return run.real end
function clock.real_text() return run.real_text end

-- due_time returns the clock due in seconds and microseconds, in text.
function clock.due_time()
  return int(math.floor(run.now / 1000)), int(run.now % 1000 * 1000 + tonumber(run.time[2]) % 1000)
end

-- micros returns the clock real in microseconds.
function clock.micros() return tonumber(run.time[1]) * 1000000 + tonumber(run.time[2]) end

-- part returns the part of a second by now in microseconds, anew each time: a random number.
function clock.part() return tonumber(redis.call('TIME')[2]) end
