-- hash_tag.of returns the hash tag of a slot's partition, as keys.SlotPartition does.
function hash_tag.of(slot)
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
