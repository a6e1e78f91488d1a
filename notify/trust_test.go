package notify

import (
	"fmt"
	"testing"
	"time"
)

// However its state changes, the count of deliveries without trust is right, and what is remembered is bounded.
func TestTrustIsCounted(t *testing.T) {
	t.Parallel()
	tr := newTrust()
	a, b := tr.of("a"), tr.of("b")
	check := func(step string, untrusted, trusted int) {
		t.Helper()
		if tr.untrusted != (load{untrusted, 10 * untrusted}) || tr.trusted != trusted {
			t.Errorf("%s: %+v without trust, %d subjects with; want %d and %d", step, tr.untrusted, tr.trusted, untrusted, trusted)
		}
	}
	for range 4 {
		tr.add(a, 10)
		tr.add(b, 10)
	}
	check("8 on their way", 8, 0)
	if !tr.admits(b, load{8, 1000}) {
		t.Error("while no subject is trusted one cannot fill the window")
	}
	tr.remove(a, 10)
	tr.succeed(a, time.Now())
	check("a succeeds", 4, 1)
	if tr.admits(b, load{8, 1000}) || !tr.admits(a, load{8, 1000}) || !tr.admits(b, load{10, 1000}) {
		t.Error("a subject without trust does not fill half of the window, or a trusted one no more than that")
	}
	if tr.admits(b, load{10, 80}) || !tr.admits(b, load{10, 90}) {
		t.Error("a subject without trust does not fill half of the bytes, or more")
	}
	if !tr.fail(b) || tr.fail(b) {
		t.Error("a failure is news more than once, or never")
	}
	check("b fails", 4, 1)
	for range 4 {
		tr.remove(b, 10)
	}
	if !tr.admits(b, load{8, 1000}) {
		t.Error("nothing tries a failing subject")
	}
	c := tr.of("c")
	tr.add(c, 10)
	tr.add(c, 10)
	if tr.admits(b, load{8, 1000}) {
		t.Error("failing subjects are tried beyond a quarter of the window")
	}
	tr.remove(c, 10)
	tr.remove(c, 10)
	tr.add(b, 10)
	if tr.admits(b, load{8, 1000}) {
		t.Error("several try a failing subject at once")
	}
	tr.fail(a)
	check("a fails too", 4, 0)
	tr.succeed(b, time.Now())
	check("b succeeds", 3, 1)
	for i := range 3 * maxSubjects {
		tr.succeed(tr.of(fmt.Sprint(i)), time.Now())
	}
	if len(tr.subjects) > maxSubjects || tr.subjects["a"] != a || tr.trusted > len(tr.subjects) {
		t.Errorf("%d subjects, %d trusted, a is known: %t", len(tr.subjects), tr.trusted, tr.subjects["a"] == a)
	}
}

// A subject is blamed for an event without an answer only if others had one, and no other event on it had.
func TestSubjectIsBlamedForItself(t *testing.T) {
	t.Parallel()
	sent := time.Now()
	for name, c := range map[string]struct {
		anyAcked, itsAcked time.Time
		want               bool
	}{
		"NATS is silent":            {time.Time{}, time.Time{}, false},
		"silent since it was sent":  {sent.Add(-time.Second), time.Time{}, false},
		"others had answers":        {sent.Add(time.Second), sent.Add(-time.Second), true},
		"one of its own had answer": {sent.Add(time.Second), sent.Add(time.Second), false},
	} {
		for _, class := range []Failure{FailureTimeout, FailureRefused} {
			p := NewPublisher(nil, nil, nil)
			d := delivery{subject: "s", trust: p.trust.of("s"), sentAt: sent}
			p.health.acked, d.trust.acked = c.anyAcked, c.itsAcked
			p.mu.Lock()
			p.fail(&d, class)
			p.mu.Unlock()
			if d.trust.failing != c.want {
				t.Errorf("%s, %s: failing %t, want %t", name, class, d.trust.failing, c.want)
			}
		}
	}
}
