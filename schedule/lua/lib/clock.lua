-- All reading of time. There are two clocks, in unix ms. In this library both are Redis's TIME at the beginning of the
-- call; a library for tests may have the first one ahead of the other ("virtual time").
--   due   Due times, and times compared with them: LATE, UNTIL, FROM, the end of a hold, the times of a resume, the
--         delay of a retry. All scores of due, firing and aside are of this clock, and the times in beside. Three kinds
--         guard real delays: the end of a lease, a pause, the wait of a contested timer. They share the clock because
--         one query of a sorted set finds everything that is over. So before moving this clock ahead, wait until
--         nothing is claimed, paused or contested.
--   real  When something happened: tombstones (fired), retried ids, serials of repetitions, heartbeats, canaries,
--         known apps, the age of an event, the time until which timers may be contested.

-- The lifetime of a tombstone, in ms.
clock.REMEMBER = 60000

-- begin reads the time. index.begin calls it.
function clock.begin()
  local t = redis.call('TIME')
  run.time, run.now = t, tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
end

-- text returns the time in text.
local function text()
  if not run.now_text then
    local seconds, micros = run.time[1], run.time[2]
    run.now_text = #micros == 6 and seconds .. string.sub(micros, 1, 3) or int(run.now)
  end
  return run.now_text
end

-- due and real return the time of the clocks; due_text and real_text the same in text.
function clock.due() return run.now end
function clock.due_text() return text() end
function clock.real() return run.now end
function clock.real_text() return text() end

-- due_time returns the clock due in seconds and microseconds, in text.
function clock.due_time() return run.time[1], run.time[2] end

-- micros returns the clock real in microseconds.
function clock.micros() return tonumber(run.time[1]) * 1000000 + tonumber(run.time[2]) end

-- part returns the part of a second by now in microseconds, anew each time: a random number.
function clock.part() return tonumber(redis.call('TIME')[2]) end
