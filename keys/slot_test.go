package keys

import "testing"

// The slots are results of CLUSTER KEYSLOT of a Redis 7.0.15.
func TestSlots(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]int{
		"":                           0,
		"123456789":                  12739,
		"app1:trans:notice:1":        5459,
		"shop:{42}:timeout:1":        8000,
		"{}:a:b:c":                   5401,
		"a:{}:{b}:c":                 14223,
		"a:{b:c:d":                   15308,
		"a:b:c:{{d}}":                14465,
		"timerd:{t}:due":             15891,
		"\x00\xff:\xc3\xbc:\r\n:end": 13668,
	} {
		if got := Slot(key); got != want {
			t.Errorf("Slot(%q) = %d, want %d", key, got, want)
		}
	}
}

func TestEverySlotHasATagOfItsOwn(t *testing.T) {
	t.Parallel()
	seen := map[Partition]int{Single: -1}
	for slot := range Slots {
		p := SlotPartition(slot)
		if p.Slot() != slot || Slot(p.Due()) != slot || Slot(CanaryKey(p, "host-1", 1)) != slot {
			t.Fatalf("the keys of slot %d hash to %d, %d and %d", slot, p.Slot(), Slot(p.Due()),
				Slot(CanaryKey(p, "host-1", 1)))
		}
		if other, taken := seen[p]; taken {
			t.Fatalf("slots %d and %d share the tag %q", slot, other, p)
		}
		seen[p] = slot
		if _, err := Parse(p.Due()); err == nil {
			t.Fatalf("%q passes for a timer", p.Due())
		}
	}
}

func TestTimersLieInTheSlotOfTheirPartition(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"a:b:c:d", "a:{x}:c:d", "app:\x00:t:{", "a:b:c:}{y}"} {
		if p := PartitionOf(key); Slot(key) != p.Slot() {
			t.Errorf("%q hashes to %d, its partition to %d", key, Slot(key), p.Slot())
		}
	}
}
