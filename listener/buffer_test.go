package listener

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/timerd-io/timerd/schedule"
)

// kinds are the kinds of hint under the names that these tests use.
var kinds = map[string]schedule.HintKind{"touched": schedule.Touched, "gone": schedule.Gone,
	"expired": schedule.Expired}

// describe writes a hint as "kind key".
func describe(h schedule.Hint) string {
	for name, kind := range kinds {
		if kind == h.Kind {
			said := name + " " + h.Key
			if h.MayWait {
				said += " (may wait)"
			}
			return said
		}
	}
	return fmt.Sprintf("%q %s", h.Kind, h.Key)
}

// addAll adds hints in the form of describe. A key "claimed" or "set" is explained by a message.
func (b *buffer) addAll(t *testing.T, hints ...string) {
	t.Helper()
	for _, h := range hints {
		kind, key, _ := strings.Cut(h, " ")
		switch kind {
		case "claimed":
			b.explain(fmt.Appendf(nil, "%d:%s", len(key), key))
			continue
		case "set":
			b.retract(key)
			continue
		}
		if _, fits := b.hear(schedule.Hint{Kind: kinds[kind], Key: key}, time.Now()); !fits {
			t.Fatalf("%s was dropped", h)
		}
	}
	b.caughtUp()
}

// newBusyBuffer returns a buffer in a backlog, for as long as busy is true.
func newBusyBuffer() (b *buffer, busy *atomic.Bool) {
	b, busy = newBuffer(), new(atomic.Bool)
	busy.Store(true)
	b.busy = busy.Load
	return b, busy
}

// next waits for hints and describes them, with the time of the wait and the age of the oldest.
func (b *buffer) next(t *testing.T) string {
	t.Helper()
	began := time.Now()
	hints := b.wait(t.Context())
	heard := time.Now()
	var said []string
	for _, h := range hints {
		said = append(said, describe(h.Hint))
		if h.heard.Before(heard) {
			heard = h.heard
		}
	}
	return fmt.Sprintf("%s after %s, heard %s ago", strings.Join(said, ", "), time.Since(began), time.Since(heard))
}

func TestHintsHaveABound(t *testing.T) {
	t.Parallel()
	b := newBuffer()
	if b.most != maxHints {
		t.Errorf("a bound of %d, want %d", b.most, maxHints)
	}
	b.most = 5000
	for i := range b.most {
		kind := schedule.Expired
		if i%2 == 0 {
			kind = schedule.Touched
		}
		if _, fits := b.hear(schedule.Hint{Kind: kind, Key: fmt.Sprint(i)}, time.Now()); !fits {
			t.Fatalf("hint %d was dropped", i)
		}
	}
	if _, fits := b.hear(schedule.Hint{Kind: schedule.Expired, Key: "one more"}, time.Now()); fits {
		t.Error("one too many was taken")
	}
	b.addAll(t, "touched a")
	if hints := b.wait(t.Context()); len(hints) != 1 {
		t.Errorf("%d hints after all were dropped, want the one since", len(hints))
	}
}

// nothing checks that no hints come within a second.
func (b *buffer) nothing(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if hints := b.wait(ctx); hints != nil {
		t.Errorf("%d hints came, want none", len(hints))
	}
}

func TestWaitEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { newBuffer().nothing(t) })
}

// A subscription's hints do not wait beyond its end.
func TestHintsAreFlushed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBuffer()
		b.busy = func() bool { return true }
		b.addAll(t, "expired a")
		time.AfterFunc(5*time.Millisecond, b.flush)
		if got, want := b.next(t), "expired a after 5ms, heard 5ms ago"; got != want {
			t.Errorf("got %s; want %s", got, want)
		}
		b.flush()
		b.nothing(t)
		b.addAll(t, "expired a", "expired b")
		_ = b.next(t)
		_ = b.keepAll("a")
		b.flush()
		if got, want := b.keepAll("b"), "expired b"; got != want {
			t.Errorf("while the subscription ended, %q was overtaken, want %q", got, want)
		}
		if got, want := b.next(t), "expired a after 0s, heard 0s ago"; got != want {
			t.Errorf("got %s; want %s", got, want)
		}
	})
}

// touch returns a Touched hint of each key.
func touch(names ...string) (hints []schedule.Hint) {
	for _, key := range names {
		hints = append(hints, schedule.Hint{Kind: schedule.Touched, Key: key})
	}
	return hints
}

// Hints that were refused keep their age, and so do newer ones of their keys.
func TestLateHintsKeepTheirAge(t *testing.T) {
	t.Parallel()
	b := newBuffer()
	now := time.Now()
	b.putOff(touch("a"), now.Add(-time.Second))
	if left := b.holdBack(touch("b"), now.Add(-2*time.Second)); len(left) != 1 {
		t.Error("a hint of another key was held back")
	}
	b.holdBack(touch("a"), now)
	hints := b.retry()
	if len(hints) != 2 || !hints[0].heard.Equal(now.Add(-time.Second)) || !hints[1].heard.Equal(now) {
		t.Errorf("%+v; want 2 hints, heard 1s and 0s ago", hints)
	}
}

// An expired event takes the age of the oldest one of its batch, so a batch has expired events of similar ages only. A
// key's hints stay in order.
func TestOldHintsAgeNoNewerOnes(t *testing.T) {
	t.Parallel()
	began := time.Now()
	hints := func(each ...string) (all []heardHint) {
		for _, h := range each {
			var kind, key string
			var ms int
			if _, err := fmt.Sscan(h, &kind, &key, &ms); err != nil {
				t.Fatal(h, err)
			}
			at := began.Add(time.Duration(ms) * time.Millisecond)
			all = append(all, heardHint{schedule.Hint{Kind: kinds[kind], Key: key}, at})
		}
		return all
	}
	for _, c := range []struct {
		name  string
		hints []heardHint
		want  string
	}{
		{"near ones", hints("expired a 200", "expired b 0", "expired c 450"),
			"expired a, expired b, expired c at 0s"},
		{"far ones", hints("expired a 0", "expired b 251", "expired c 0", "expired d 400"),
			"expired a, expired c at 0s; expired b, expired d at 251ms"},
		{"other kinds", hints("expired a 0", "touched b 5000", "touched c 9000"),
			"expired a, touched b, touched c at 0s"},
		{"other kinds alone", hints("touched a 0", "gone b 5000"), "touched a, gone b at 0s"},
		{"one key's", hints("expired a 0", "expired b 900", "touched b 901", "expired c 0"),
			"expired a, expired c at 0s; expired b, touched b at 900ms"},
	} {
		var got []string
		for left := c.hints; len(left) > 0; {
			batch, heard, rest := nextBatch(left)
			var names []string
			for _, h := range batch {
				names = append(names, describe(h))
			}
			got, left = append(got, fmt.Sprint(strings.Join(names, ", "), " at ", heard.Sub(began))), rest
		}
		if said := strings.Join(got, "; "); said != c.want {
			t.Errorf("%s: batches %s, want %s", c.name, said, c.want)
		}
	}
}

// Old and new hints alternate if keys are set again after their timers ran out, while claims are late. 5,000 such keys
// need few calls.
func TestAlternatingAgesNeedFewCalls(t *testing.T) {
	t.Parallel()
	began := time.Now()
	var hints []heardHint
	for i := range 5000 {
		key, heard := fmt.Sprint(i), began.Add(time.Duration(i%3)*time.Second)
		hints = append(hints, heardHint{schedule.Hint{Kind: schedule.Expired, Key: key}, heard},
			heardHint{schedule.Hint{Kind: schedule.Touched, Key: key}, heard.Add(1500 * time.Millisecond)})
	}
	calls, last := 0, map[string]schedule.HintKind{}
	for len(hints) > 0 {
		var batch []schedule.Hint
		batch, _, hints = nextBatch(hints)
		calls++
		for _, h := range batch {
			if h.Kind == schedule.Touched && last[h.Key] != schedule.Expired {
				t.Fatalf("%s: touched before it has expired", h.Key)
			}
			last[h.Key] = h.Kind
		}
	}
	if most := 3 * (10_000/schedule.MaxHints + 1); len(last) != 5000 || calls > most {
		t.Errorf("%d keys in %d calls, want 5000 in %d at most", len(last), calls, most)
	}
}

// Hints of moving slots are tried again after a pause, and keep their age. Their number is bounded.
func TestHintsArePutOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBuffer()
		b.putOff(touch("a"), time.Now())
		b.addAll(t, "touched b")
		for _, want := range []string{"touched b after 0s, heard 0s ago", "touched a after 100ms, heard 100ms ago"} {
			if got := b.next(t); got != want {
				t.Errorf("got %s; want %s", got, want)
			}
		}
		b.putOff(touch("a"), time.Now())
		if b.idle() {
			t.Error("idle while a hint is deferred")
		}
		if hints := b.wait(t.Context()); len(hints) != 1 || hints[0].Held != 2*deferredPause {
			t.Errorf("got %+v, want one that was put off for %s", hints, 2*deferredPause)
		}
		b.nothing(t)
		if !b.idle() {
			t.Error("not idle though all were taken in")
		}
		b.putOff(touch("a"), time.Now())
		if hints := b.wait(t.Context()); len(hints) != 1 || hints[0].Held != deferredPause {
			t.Errorf("got %+v, want one that was put off anew", hints)
		}
		b.most = 2
		if !b.putOff(touch("a", "b"), time.Now()) || b.putOff(touch("c"), time.Now()) {
			t.Error("want room for two")
		}
		b.nothing(t)
	})
}
