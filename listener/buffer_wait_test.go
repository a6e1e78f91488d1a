package listener

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/timerd-io/timerd/schedule"
)

func TestHintsThatWait(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, want string
		hints      []string
		busy       bool
	}{
		{"at once", "touched a after 0s, heard 0s ago", []string{"touched a"}, true},
		{"expired alone", "expired a after 10ms, heard 10ms ago", []string{"expired a"}, false},
		{"others take it along", "touched b, expired a after 0s, heard 0s ago", []string{"expired a", "touched b"},
			false},
		{"but not while busy", "touched b after 0s, heard 0s ago", []string{"expired a", "touched b"}, true},
		{"busy, alone", "expired a (may wait) after 500ms, heard 500ms ago", []string{"expired a"}, true},
		{"in the order of one key", "touched a, expired a, touched a after 0s, heard 0s ago",
			[]string{"touched a", "expired a", "touched a"}, true},
		{"in the order of one key, with others", "expired b, expired a, gone a after 0s, heard 0s ago",
			[]string{"expired b", "expired a", "gone a"}, true},
		{"claimed since", "touched b after 0s, heard 0s ago",
			[]string{"touched a", "expired a", "touched b", "gone a", "claimed a"}, true},
		{"all claimed since", "touched b after 0s, heard 0s ago", []string{"expired a", "claimed a", "touched b"},
			false},
		{"after the claim", "expired a after 10ms, heard 10ms ago", []string{"expired a", "claimed a", "expired a"},
			false},
		{"set by timer_set", "touched a, expired a after 0s, heard 0s ago",
			[]string{"touched a", "expired a", "touched a", "set a"}, true},
		{"set by timer_set alone", "touched b after 0s, heard 0s ago",
			[]string{"touched a", "set a", "set a", "touched b"}, true},
		{"twice", "touched a after 0s, heard 0s ago", []string{"touched a", "touched a", "expired b", "expired b"},
			true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBuffer()
				b.busy = func() bool { return c.busy }
				b.addAll(t, c.hints...)
				if got := b.next(t); got != c.want {
					t.Errorf("got %s; want %s", got, c.want)
				}
			})
		})
	}
}

// Each batch is as old as the oldest of its hints.
func TestHintsKeepTheirAge(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, busy := newBusyBuffer()
		b.addAll(t, "expired a")
		time.Sleep(100 * time.Millisecond)
		b.addAll(t, "touched b")
		for _, want := range []string{"touched b after 0s, heard 0s ago",
			"expired a (may wait) after 400ms, heard 500ms ago"} {
			if got := b.next(t); got != want {
				t.Errorf("got %s; want %s", got, want)
			}
		}
		b.addAll(t, "expired a")
		time.Sleep(100 * time.Millisecond)
		b.addAll(t, "touched a")
		if got, want := b.next(t), "expired a, touched a after 0s, heard 100ms ago"; got != want {
			t.Errorf("got %s; want %s", got, want)
		}
		b.addAll(t, "expired a")
		time.AfterFunc(25*time.Millisecond, func() { busy.Store(false) })
		if got, want := b.next(t), "expired a after 30ms, heard 30ms ago"; got != want {
			t.Errorf("got %s; want %s", got, want)
		}
	})
}

// keepAll gives back expired events of due timers, and describes the overtaken ones.
func (b *buffer) keepAll(names ...string) string {
	var due []schedule.Hint
	for _, key := range names {
		due = append(due, schedule.Hint{Kind: schedule.Expired, Key: key})
	}
	var said []string
	for _, h := range b.await(due, time.Now()) {
		said = append(said, describe(h))
	}
	return strings.Join(said, ", ")
}

// An expired event of a due timer waits for the claim, unless another event of its key comes first.
func TestHintsWaitForTheClaim(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name         string
		asked, since []string // hints during the call of the schedule, and after it
		overtaken    string
		want         string
	}{
		{"until the crowd is over", nil, nil, "", "expired a, expired b after 1s, heard 1s ago"},
		{"for the claim", nil, []string{"claimed a"}, "", "expired b after 1s, heard 1s ago"},
		{"claimed meanwhile", []string{"claimed b"}, nil, "", "expired a after 1s, heard 1s ago"},
		{"claimed and set again meanwhile", []string{"claimed b", "touched b"}, nil, "",
			"touched b after 0s, heard 0s ago"},
		{"set again meanwhile", []string{"touched b"}, nil, "expired b", "touched b after 0s, heard 0s ago"},
		{"set again", nil, []string{"touched a"}, "", "expired a, touched a after 0s, heard 0s ago"},
		{"deleted", nil, []string{"touched c", "gone a"}, "", "touched c, expired a, gone a after 0s, heard 0s ago"},
		{"ran out again", nil, []string{"expired a"}, "", "expired a after 0s, heard 0s ago"},
		{"set by timer_set", nil, []string{"touched a", "set a"}, "", "expired a after 0s, heard 0s ago"},
		{"others", nil, []string{"touched c"}, "", "touched c after 0s, heard 0s ago"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, busy := newBusyBuffer()
				b.addAll(t, "expired a", "expired b")
				const want = "expired a (may wait), expired b (may wait) after 500ms, heard 500ms ago"
				if got := b.next(t); got != want {
					t.Fatalf("got %s; want %s", got, want)
				}
				b.addAll(t, c.asked...)
				if got := b.keepAll("a", "b"); got != c.overtaken {
					t.Errorf("overtaken: %q, want %q", got, c.overtaken)
				}
				b.addAll(t, c.since...)
				if b.idle() {
					t.Error("idle while hints wait")
				}
				time.AfterFunc(995*time.Millisecond, func() { busy.Store(false) })
				if got := b.next(t); got != c.want {
					t.Errorf("got %s; want %s", got, c.want)
				}
			})
		})
	}
}

// Neither an endless crowd nor the number of its timers keeps an expired event for ever.
func TestHintsDoNotWaitForEver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBuffer()
		if b.mostAwaiting != maxAwaiting {
			t.Errorf("a bound of %d, want %d", b.mostAwaiting, maxAwaiting)
		}
		b.mostAwaiting = 10_000
		b.busy = func() bool { return true }
		b.addAll(t, "expired a")
		_ = b.next(t)
		_ = b.keepAll("a")
		for range 10 {
			if got, want := b.next(t), "expired a (may wait) after 1.5s, heard 1.5s ago"; got != want {
				t.Errorf("got %s; want %s", got, want)
			}
			_ = b.keepAll("a")
		}
		many := make([]string, b.mostAwaiting)
		for i := range many {
			many[i] = fmt.Sprint(i)
			b.addAll(t, "expired "+many[i])
		}
		_ = b.next(t)
		_ = b.keepAll(many...)
		b.addAll(t, "expired b")
		if got, want := b.next(t), "expired b after 500ms, heard 500ms ago"; got != want {
			t.Errorf("got %s; want %s", got, want)
		}
		// While all waiting ones are asked about, no other may wait.
		time.Sleep(askAgain - longestLinger - 400*time.Millisecond)
		b.addAll(t, "expired c")
		time.Sleep(500 * time.Millisecond)
		hints := b.wait(t.Context())
		if n := len(hints); n != b.mostAwaiting+2 || describe(hints[n-1].Hint) != "expired c" || !hints[0].MayWait {
			t.Fatalf("%d hints, the last one %s; want all that wait, and one that may not", n,
				describe(hints[n-1].Hint))
		}
		_ = b.keepAll(slices.Concat(many, []string{"a"})...)
		b.addAll(t, "claimed a")
		for _, key := range many {
			b.addAll(t, "claimed "+key)
			if most := 2*len(b.in[awaiting].last) + 1001; len(b.in[awaiting].hints) > most {
				t.Fatalf("%d hints of %d keys take room, want at most %d", len(b.in[awaiting].hints),
					len(b.in[awaiting].last), most)
			}
		}
		b.busy = func() bool { return false }
		b.nothing(t) // their timers were all claimed
	})
}

// At the end of a backlog the waiting hints do not delay newer ones.
func TestHintsThatWaitedAreReleasedBitByBit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, busy := newBusyBuffer()
		many := make([]string, 2*maxReleased+1)
		for i := range many {
			many[i] = fmt.Sprint(i)
			b.addAll(t, "expired "+many[i])
		}
		_ = b.next(t)
		_ = b.keepAll(many...)
		busy.Store(false)
		b.addAll(t, "touched a")
		for _, want := range []int{maxReleased + 1, maxReleased, 1} {
			if hints := b.wait(t.Context()); len(hints) != want {
				t.Errorf("%d hints at once, want %d", len(hints), want)
			} else if want > maxReleased && hints[0].Key != "a" {
				t.Errorf("first comes %s, want the newer hint", hints[0].Key)
			}
		}
	})
}
