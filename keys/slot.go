package keys

import "strings"

// Slots is the number of hash slots in a Redis Cluster.
const Slots = 16384

// Slot returns the hash slot of a Redis key: the CRC16 of the text between its first { and the next }, or of the whole
// key if there is no such text.
func Slot(key string) int {
	if _, after, ok := strings.Cut(key, "{"); ok {
		if tag, _, closed := strings.Cut(after, "}"); closed && tag != "" {
			key = tag
		}
	}
	crc := uint16(0) // by the polynomial of XMODEM
	for i := range len(key) {
		crc ^= uint16(key[i]) << 8
		for range 8 {
			top := crc >> 15
			crc = crc<<1 ^ top*0x1021
		}
	}
	return int(crc % Slots)
}

// Each slot has a tag of its own that hashes to it. A tag has TagLetters letters, each one of the eight from TagFirst
// on, which differ only in their three lowest bits. CRC16 is linear. So the bits of a tag are those of TagBase,
// exclusive-ored with those of TagBits for each bit set in the slot, lowest first. Scripts compute tags in the same
// way, without a table.
const (
	TagLetters = 6
	TagFirst   = 'h'
	TagBase    = 0x2cb
)

// TagBits returns the bits that each bit of a slot, lowest first, flips in its tag.
func TagBits() [14]int {
	return [...]int{
		0x612d, 0x2c79, 0x6c6e, 0x65a8, 0x0b0a, 0x050b, 0x6953,
		0x2660, 0x484e, 0x2966, 0x6b24, 0x0879, 0x246e, 0x2263,
	}
}

// SlotPartition returns the partition of the timers in a slot of a Redis Cluster. Each slot has its own.
func SlotPartition(slot int) Partition {
	bits := TagBase
	for i, change := range TagBits() {
		if slot>>i&1 == 1 {
			bits ^= change
		}
	}
	var tag [TagLetters]byte
	for i := range tag {
		tag[i] = TagFirst + byte(bits>>(3*i)&7)
	}
	return Partition(tag[:])
}

// PartitionOf returns the partition of a timer in a Redis Cluster: its index lies in the slot of its key.
func PartitionOf(key string) Partition { return SlotPartition(Slot(key)) }

// Slot returns the hash slot of the partition's keys.
func (p Partition) Slot() int { return Slot(string(p)) }
