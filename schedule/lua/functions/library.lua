#!lua name=timerd
-- include: timers repeat
