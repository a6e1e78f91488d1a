package notify

import (
	"testing"
	"time"
)

func TestLedger(t *testing.T) {
	t.Parallel()
	first, second := time.Unix(1, 0), time.Unix(2, 0)
	ack := func(l *ledger, after sequence, seq uint64, contradicts bool) {
		t.Helper()
		if l.note(after, seq) != contradicts {
			t.Errorf("sequence %d after %+v contradicts: %t", seq, after, !contradicts)
		}
	}
	look := func(l *ledger, created time.Time, last uint64, acknowledged sequence, want *breach) {
		t.Helper()
		got := l.compare(created, last, acknowledged)
		if (got == nil) != (want == nil) || got != nil && *got != *want {
			t.Errorf("a last sequence of %d proves %+v, want %+v", last, got, want)
		}
	}
	begin := func() (*ledger, sequence) {
		l := &ledger{}
		look(l, first, 0, l.highest, nil)
		ack(l, l.highest, 10, false)
		look(l, first, 12, l.highest, nil)
		return l, l.highest
	}

	l, before := begin()
	ack(l, before, 9, true)
	ack(l, before, 8, false)       // of the same time
	look(l, first, 9, before, nil) // asked before: it may be another stream
	look(l, first, 9, l.highest, &breach{9, 10})
	look(l, first, 9, l.highest, nil)

	l, before = begin()
	ack(l, before, 1, true)
	look(l, second, 1, l.highest, nil)
	look(l, second, 1, l.highest, nil)
	ack(l, l.highest, 2, false)

	l, _ = begin()
	look(l, first, 9, l.highest, nil)
	look(l, first, 10, l.highest, nil) // it was only behind
	look(l, first, 7, l.highest, nil)
	look(l, first, 7, l.highest, &breach{8, 10})
	look(l, first, 7, l.highest, nil)

	l, _ = begin()
	look(l, second, 3, l.highest, nil)
	look(l, second, 3, l.highest, nil)
}
