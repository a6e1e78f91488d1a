package notify

import (
	"testing"
	"time"
)

func TestStreamRecord(t *testing.T) {
	t.Parallel()
	first, second := time.Unix(1, 0), time.Unix(2, 0)
	ack := func(l *streamRecord, after sequence, seq uint64, contradicts bool) {
		t.Helper()
		if l.note(after, seq) != contradicts {
			t.Errorf("sequence %d after %+v contradicts: %t", seq, after, !contradicts)
		}
	}
	look := func(l *streamRecord, created time.Time, last uint64, acknowledged sequence, want *breach) {
		t.Helper()
		got := l.compare(time.Minute, created, last, acknowledged)
		if (got == nil) != (want == nil) || got != nil && *got != *want {
			t.Errorf("a last sequence of %d proves %+v, want %+v", last, got, want)
		}
	}
	begin := func() (*streamRecord, sequence) {
		l := &streamRecord{}
		look(l, first, 0, l.top, nil)
		ack(l, l.top, 10, false)
		look(l, first, 12, l.top, nil)
		return l, l.top
	}

	l, before := begin()
	ack(l, before, 9, true)
	ack(l, before, 8, false)       // of the same time
	look(l, first, 9, before, nil) // asked before: it may be another stream
	look(l, first, 9, l.top, &breach{9, 10})
	look(l, first, 9, l.top, nil)

	l, before = begin()
	ack(l, before, 1, true)
	look(l, second, 1, l.top, nil)
	look(l, second, 1, l.top, nil)
	ack(l, l.top, 2, false)

	l, _ = begin()
	look(l, first, 9, l.top, nil)
	look(l, first, 10, l.top, nil) // it was only behind
	look(l, first, 7, l.top, nil)
	look(l, first, 7, l.top, &breach{8, 10})
	look(l, first, 7, l.top, nil)

	l, _ = begin()
	look(l, second, 3, l.top, nil)
	look(l, second, 3, l.top, nil)
}
