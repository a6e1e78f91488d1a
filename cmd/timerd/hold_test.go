package main

import (
	"math"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/holds"
	"github.com/timerd-io/timerd/internal/testenv"
)

func TestParseRate(t *testing.T) {
	for text, want := range map[string]float64{"200/s": 200, "0.5/s": 0.5, "90/m": 1.5, "1/m": 1. / 60, "60/h": 1. / 60, "1000000/s": 1e6, "3600000000/h": 1e6} {
		if got, err := holds.ParseRate(text); err != nil || math.Abs(got-want) > 1e-9 {
			t.Errorf("%s: %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "3", "/s", "x/s", "3/d", "0/s", "-1/s", "0.001/s", "1/h", "1e-300/s", "1000001/s", "1e300/s", "NaN/s", "Inf/s"} {
		if got, err := holds.ParseRate(text); err == nil || !strings.Contains(err.Error(), "from 1/m to 1000000/s") {
			t.Errorf("%s: %v, %v; want an error that says what is allowed", text, got, err)
		}
	}
}

// A hold that is set during a resume is a hold of its own: it ends the resume, keeps what is left, and a shift moves all of it by
// its length.
func TestHoldAnewDuringAResume(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.start()
	c := s.collect()
	s.says(0, "hold shop", "shop held")
	first := s.heldNow()[0].Since
	want := s.setMany("shop", 20, 1500*time.Millisecond)
	due := map[string]int64{}
	for _, w := range want {
		key, _, _ := strings.Cut(w, "=")
		due[key] = s.due(key)
	}
	s.holds("shop", 20)
	cmd, _ := s.command("resume", "shop", "--rate", "1/m")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c.WaitFunc(patience, atLeast(1))
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	s.says(0, "hold shop", "shop held anew, since ", "a shift counts from this hold")
	anew := s.heldNow()[0]
	if !anew.Since.After(first) || anew.Resume != nil {
		t.Errorf("%+v, want a hold since after %s", anew, first)
	}
	s.holds("shop", 19)
	s.says(0, "hold shop", "shop held as before, since ")
	s.says(0, "resume shop --shift", "shop resumed")
	for _, e := range s.expect(c, want...) {
		by := e.Due.UnixMilli() - due[e.Key.String()]
		if longest := time.Since(anew.Since).Milliseconds(); by > longest {
			t.Errorf("%s was shifted by %d ms, want the length of the second hold, at most %d", e.ID, by, longest)
		}
	}
	testenv.Eventually(t, patience, func() bool { return len(s.heldNow()) == 0 }, "the resume to be over")
	s.settled()
	s.says(1, "hold shop --reason "+strings.Repeat("x", 2000), "the reason has 2000 bytes, at most 1024 are allowed")
}
