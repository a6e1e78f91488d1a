#!lua flags=allow-oom,allow-cross-slot-keys,no-writes
-- include: clock losses
--[[ read_losses reads what tells how keys of this server may have vanished. It writes
nothing.
Returns {this server's clock in unix ms, the text of losses, how many keys ran out}. ]]
local now = read_clock()
local text, expired = losses()
return { now, text, expired }
