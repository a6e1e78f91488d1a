package faults_test

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/test/system"
)

// Requests that cannot become dead letters, because the stream of these is full, hold up no retry of others. Once there
// is room, each becomes a letter, once.
func TestRetriesWhileDeadLettersAreFull(t *testing.T) {
	t.Parallel()
	const bad, good = 3000, 300
	s := system.New(t)
	s.Env["TIMERD_RETRY"] = "bad=exp(1s,1,1s,0); *=200ms"
	p := s.Start()
	c := s.Collect()
	s.Ask("bad:b:c:first")
	s.Letters(1)
	s.LimitDead(1)
	s.Ask(system.KeysOf("bad:b:c:", bad)...)
	var want []string
	for i := range 3 { // while they come for the first time, and while they come back
		want = s.OthersGoOn(c, want, i, good/3)
		s.Delivered(bad)
		s.After(s.Now() + 1000)
	}
	if _, body, err := p.Get("/metrics"); err != nil || strings.Contains(body,
		`timerd_set_aside_total{reason="retry"} 0`) {
		t.Errorf("nothing was counted as set aside: %v", err)
	}
	s.LimitDead(-1)
	began := time.Now()
	ids := map[string]bool{}
	for _, letter := range s.Letters(bad + 1) {
		ids[letter.ID] = true
	}
	t.Logf("all dead letters %v after there was room", time.Since(began))
	if len(ids) != bad+1 {
		t.Errorf("letters of %d events, want %d", len(ids), bad+1)
	}
	s.NoRequests()
	p.AwaitReady(true)
	s.Letters(bad + 1)
	p.Stop()
}

// What a timerd has fetched that is killed then is carried out by another one soon.
func TestRetriesOfAKilledTimerd(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	s.Env["TIMERD_RETRY"] = "*=1ms"
	dying := s.Start()
	c := s.Collect()
	watch := testenv.StartStopwatch()
	dying.Signal(syscall.SIGSTOP)
	all := system.KeysOf("good:b:c:", 10)
	s.Ask(all...)
	s.Delivered(len(all))
	other := s.Launch()
	dying.Kill()
	other.AwaitReady(true)
	for _, e := range s.Expect(c, system.FireAll(all)...) {
		watch.Late(t, e.Time.Sub(e.Due), 6*time.Second, "the retries of "+e.Key.String())
	}
	s.NoRequests()
	s.Settled()
	other.Stop()
}
