#!lua name=timerd
-- include: timers cancel get repeat
