#!lua flags=allow-oom,allow-cross-slot-keys,no-writes
--[[ read_losses reads the signs of losses: how keys of this server may have vanished. It writes nothing.
Returns {this server's clock in unix ms, the text of losses, the number of keys that ran out}. ]]

function steps.read_losses(KEYS, ARGV)
  index.begin()
  local text, expired = losses.read()
  return { clock.real(), text, expired }
end
