-- include: names tags index announce count_call
-- hash_tag returns the hash tag of a slot's partition, as keys.SlotPartition does.
local function hash_tag(slot)
  local bits, letters = TAG_BASE, {}
  for i = 1, #TAG_BITS do
    if slot % 2 == 1 then bits = bit.bxor(bits, TAG_BITS[i]) end
    slot = math.floor(slot / 2)
  end
  for i = 1, TAG_LETTERS do
    letters[i] = string.char(TAG_FIRST + bits % 8)
    bits = math.floor(bits / 8)
  end
  return table.concat(letters)
end

-- open_partition_of opens the index of a timer, which is in the slot of the timer's
-- key. While the slot moves from one server to another, each has only some of the keys;
-- an access to a key that is elsewhere would end the function in the middle of its
-- writes. So it first asks for two keys at once, of which one never exists. Redis
-- refuses that on both servers for as long as the slot moves. Then open_partition_of
-- returns an error reply that makes the client try again; otherwise nil.
local function open_partition_of(key)
  open(PREFIX .. hash_tag(redis.call('CLUSTER', 'KEYSLOT', key)) .. SUFFIX)
  if type(redis.pcall('EXISTS', due_key, prefix)) == 'table' then
    return redis.error_reply('TRYAGAIN timerd: the slot of the key is moving to another server')
  end
end

-- announce_set announces a timer that has just been set, and counts it: mostly no message
-- tells of it.
local function announce_set(key, due)
  announce_first(key, due)
  count_call('timer_set')
end
