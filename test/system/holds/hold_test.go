package holds_test

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/test/system"
)

// A hold that is set during a resume is a hold of its own: it ends the resume, keeps the rest, and a shift moves all of
// it by its length.
func TestHoldAnewDuringAResume(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	s.Start()
	c := s.Collect()
	s.Says(0, "hold shop", "shop held")
	first := s.HeldNow()[0].Since
	want, due := s.SetManyDue("shop", 20, 1500*time.Millisecond)
	s.Holds("shop", 20)
	cmd, _ := s.Command("resume", "shop", "--rate", "1/m")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c.WaitFunc(system.Patience, system.AtLeast(1))
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	s.Says(0, "hold shop", "shop held again, since ", "a shift counts from this hold")
	anew := s.HeldNow()[0]
	if !anew.Since.After(first) || anew.Resume != nil {
		t.Errorf("%+v, want a hold since after %s", anew, first)
	}
	s.Holds("shop", 19)
	s.Says(0, "hold shop", "shop held as before, since ")
	s.Says(0, "resume shop --shift", "shop resumed")
	for _, e := range s.Expect(c, want...) {
		by := e.Due.UnixMilli() - due[e.Key.String()]
		if longest := time.Since(anew.Since).Milliseconds(); by > longest {
			t.Errorf("%s was shifted by %d ms, want the length of the second hold, at most %d", e.ID, by, longest)
		}
	}
	testenv.Eventually(t, system.Patience, func() bool { return len(s.HeldNow()) == 0 }, "the resume to be over")
	s.Settled()
	s.Says(1, "hold shop --reason "+strings.Repeat("x", 2000), "the reason has 2000 bytes, at most 1024 are allowed")
}

// A resume of timers under another hold prints how many stay on hold, and by which; its kind applies once that ends.
func TestResumeUnderAnotherHold(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	p := s.Start()
	c := s.Collect()
	dead := testenv.Collect(t, s.JS, "TIMERS_DEAD")
	s.Says(0, "hold shop:order")
	s.Says(0, "hold shop")
	for i := range 3 {
		s.Do("FCALL", "timer_set", 1, fmt.Sprint("shop:order:t:", i), "order", "PX", 300)
	}
	s.Do("FCALL", "timer_set", 1, "shop:basket:t:1", "basket", "PX", 300)
	s.Holds("shop", 4)
	s.Says(0, "resume shop:order --dead",
		"shop:order resumed; 3 timers still on hold by shop, to become dead letters at its end")
	p.Kill()
	s.Start()
	s.Holds("shop", 4)
	s.Says(0, "resume shop", "shop resumed")
	s.Expect(c, "shop:basket:t:1=basket")
	areHeldLetters(s, dead, []string{"shop:order:t:0=order", "shop:order:t:1=order", "shop:order:t:2=order"})
	testenv.Eventually(t, system.Patience, func() bool { return len(s.HeldNow()) == 0 }, "both resumes to be over")
	s.Settled()
}

// A resume of all namespaces ends though a narrower hold keeps timers, which fire at its end.
func TestResumeOfAllAboveAHold(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	s.Start()
	c := s.Collect()
	s.Says(0, "hold *")
	s.Says(0, "hold shop:order")
	for i := range 2 {
		s.Do("FCALL", "timer_set", 1, fmt.Sprint("shop:order:t:", i), "order", "PX", 20)
	}
	s.Do("FCALL", "timer_set", 1, "shop:basket:t:1", "basket", "PX", 20)
	s.Holds("*", 3)
	s.Says(0, "resume *", "* resumed; 2 timers still on hold by shop:order, to fire at its end")
	s.Expect(c, "shop:basket:t:1=basket")
	s.Says(0, "resume shop:order", "shop:order resumed")
	s.Expect(c, "shop:basket:t:1=basket", "shop:order:t:0=order", "shop:order:t:1=order")
	s.Settled()
}

// A resume with timers that another hold keeps does not wait for a resume that takes hours.
func TestResumeBesideASlowOne(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	s.Start()
	c := s.Collect()
	for _, namespace := range []string{"pay", "shop", "shop:order"} {
		s.Says(0, "hold "+namespace)
	}
	for i := range 100 {
		s.Do("FCALL", "timer_set", 1, fmt.Sprint("pay:order:t:", i), "pay", "PX", 20)
	}
	for i := range 2 {
		s.Do("FCALL", "timer_set", 1, fmt.Sprint("shop:order:t:", i), "order", "PX", 20)
	}
	s.Holds("pay", 100)
	s.Holds("shop", 2)
	slow, _ := s.Command("resume", "pay", "--rate", "1/m")
	if err := slow.Start(); err != nil {
		t.Fatal(err)
	}
	c.WaitFunc(system.Patience, system.AtLeast(1))
	s.Says(0, "resume shop", "shop resumed; 2 timers still on hold by shop:order, to fire at its end")
	if err := slow.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = slow.Wait() // it was killed
}
