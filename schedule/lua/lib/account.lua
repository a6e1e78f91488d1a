-- The account of a partition: the numbers of timers that have entered and left it since the account began. The
-- sorted set account has them by kind, a letter each, as far as they are not 0 (schedule/account.go). The timers in due
-- and in firing have entered and have not left: so each change of these notes a kind, or moves a timer within the
-- partition. All callers may run ZADD. A failure to count stops no timer; the account differs then.

-- The kinds of entering and leaving. Settling has others, which timerd names.
account.SET, account.ADOPTED, account.RETRIED, account.REPEATED = 's', 'a', 'r', 'n'
account.CANCELLED, account.REPLACED, account.SKIPPED = 'c', 'x', 'k'

-- account.note counts timers that have entered or left by a kind; nil is a move.
function account.note(kind, count)
  if kind and count > 0 then redis.pcall('ZADD', run.prefix .. 'account', 'INCR', count, kind) end
end

-- account.set notes that a timer was set by a kind. Where it is not new, it replaces another one.
function account.set(kind, is_new)
  account.note(kind, 1)
  if not is_new then account.note(account.REPLACED, 1) end
end
