package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
)

// command is a process of the command line.
func (s *system) command(args ...string) (*exec.Cmd, *bytes.Buffer) {
	s.t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(cmd.Env, mainVariable+"=1", "PATH="+os.Getenv("PATH"))
	for name, value := range s.env {
		if strings.HasPrefix(name, "TIMERD_REDIS_") || strings.HasPrefix(name, "TIMERD_NATS_") {
			cmd.Env = append(cmd.Env, name+"="+value)
		}
	}
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	return cmd, &said
}

// says runs a command, which must end with an exit code and say some texts.
func (s *system) says(code int, line string, texts ...string) string {
	s.t.Helper()
	cmd, said := s.command(strings.Fields(line)...)
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		s.t.Fatal(err)
	}
	if cmd.ProcessState.ExitCode() != code {
		s.t.Fatalf("timerd %s: exit code %d, want %d\n%s", line, cmd.ProcessState.ExitCode(), code, said)
	}
	for _, text := range texts {
		if !strings.Contains(said.String(), text) {
			s.t.Fatalf("timerd %s: want %q\n%s", line, text, said)
		}
	}
	return said.String()
}

// saysAtLast runs a command until it ends well and says some texts, which may take a moment where the machine is busy.
func (s *system) saysAtLast(line string, texts ...string) {
	s.t.Helper()
	testenv.Eventually(s.t, patience, func() error {
		cmd, said := s.command(strings.Fields(line)...)
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("timerd %s: %w\n%s", line, err, said)
		}
		if slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(said.String(), text) }) {
			return fmt.Errorf("timerd %s: want %q\n%s", line, texts, said)
		}
		return nil
	}, "what the command says")
}

// setMany sets timers that are due one ms after the other, and returns what must fire. From a second on every other one is
// plain, and due after three seconds at least: a plain key that is gone before timerd has seen it fires without its payload.
func (s *system) setMany(app string, n int, in time.Duration) (want []string) {
	s.t.Helper()
	for first := 0; first < n; first += 1000 {
		pipe := s.rdb.Pipeline()
		for i := first; i < min(first+1000, n); i++ {
			key := fmt.Sprintf("%s:m:t:%d", app, i)
			offset := time.Duration(i%500) * time.Millisecond
			if in < time.Second || i%2 == 0 {
				pipe.FCall(s.t.Context(), "timer_set", []string{key}, i, "PX", (in + offset).Milliseconds())
			} else {
				pipe.Set(s.t.Context(), key, i, max(in, 3*time.Second)+offset)
			}
			want = append(want, fmt.Sprintf("%s=%d", key, i))
		}
		if _, err := pipe.Exec(s.t.Context()); err != nil {
			s.t.Fatal(err)
		}
	}
	return want
}

// heldNow returns the lines of timerd holds --json.
func (s *system) heldNow() (views []holdView) {
	s.t.Helper()
	for line := range strings.Lines(s.says(0, "holds --json")) {
		var v holdView
		if json.Unmarshal([]byte(line), &v) == nil {
			views = append(views, v)
		}
	}
	return views
}

// holds waits until so many timers of a namespace are held.
func (s *system) holds(namespace string, n int64) {
	s.t.Helper()
	testenv.Eventually(s.t, patience, func() error {
		views := s.heldNow()
		for _, v := range views {
			if v.Namespace == namespace && v.Held != nil && *v.Held == n {
				return nil
			}
		}
		return fmt.Errorf("held: %+v, want %d of %s", views, n, namespace)
	}, "timers to be held")
}

// A hold by two timerds of which one is stopped; the others' timers; cancellations; a resume at once.
func TestHoldAndResume(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	a, b := s.start(), s.start()
	c := s.collect()
	began := time.Now().Truncate(time.Millisecond)
	b.signal(syscall.SIGSTOP)
	s.says(0, "hold shop --reason outage", "shop held", "no replica has the hold") // it waits for nobody for 5 s: then the exit code is 1
	noted := time.Now()
	held := s.setMany("shop", 1000, time.Second)
	others := s.setMany("other", 200, time.Second)
	b.signal(syscall.SIGCONT)
	s.expect(c, others...)
	s.holds("shop", 1000)
	s.says(0, "get shop:m:t:7", "state    held")
	s.says(0, "ls shop --state held --limit 1", "held")
	s.saysAtLast("status", "1000 held", "shop")
	a.measures(true, "timerd_held_timers 1000")
	a.measures(true, "timerd_holds 1")
	if v := s.heldNow()[0]; v.Reason != "outage" || !strings.Contains(v.By, "@") || v.Until != nil || v.Since.Before(began) || v.Since.After(noted) {
		t.Errorf("holds --json: %+v, want it since a time from %s to %s", v, began, noted)
	}
	s.says(0, "cancel shop:m:t:7", "cancelled")
	held = slices.DeleteFunc(held, func(want string) bool { return want == "shop:m:t:7=7" })
	s.says(1, "resume shop:m", "shop:m is not held")
	s.says(2, "resume shop --rate 3", "want a number of timers and a unit")
	s.says(0, "resume shop", "shop resumed")
	for _, e := range s.expect(c, append(held, others...)...) {
		if e.Key.App == "shop" && e.Time.Sub(e.Due) < 0 {
			t.Errorf("%s is early", e.ID)
		}
	}
	s.says(0, "holds", "nothing is held")
	s.settled()
	a.stop()
	b.stop()
	if !strings.Contains(a.log.String(), "timers are held") || !strings.Contains(a.log.String(), "reason=outage") {
		t.Errorf("the log does not say who held what, when and why:\n%s", a.log)
	}
}

// Released at a rate, by two timerds, though the command and a timerd are killed in the middle.
func TestResumeAtARate(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	a := s.start()
	s.start()
	c := s.collect()
	s.says(0, "hold shop")
	want := s.setMany("shop", 1500, 100*time.Millisecond)
	s.holds("shop", 1500)
	cmd, _ := s.command("resume", "shop", "--rate", "200/s")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c.WaitFunc(patience, atLeast(100))
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	a.kill()
	all := s.expect(c, want...)
	slices.SortFunc(all, func(a, b event.Event) int { return a.Time.Compare(b.Time) })
	for i := range all {
		const within = 5 // seconds
		n := 0
		for n < len(all)-i && all[i+n].Time.Sub(all[i].Time) < within*time.Second {
			n++
		}
		if n > 200*within*11/10+1 {
			t.Fatalf("%d within %d s from %s on, want no more than a tenth above %d", n, within, all[i].Time, 200*within)
		}
	}
	if took := all[len(all)-1].Time.Sub(all[0].Time); took < 6800*time.Millisecond {
		t.Errorf("1,500 at 200 a second took %s", took)
	}
	s.settled()
}

// Shifted by the length of the hold, to the ms, though timerds are killed in the middle.
func TestResumeShifts(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	a := s.start()
	c := s.collect()
	s.says(0, "hold shop")
	since := s.heldNow()[0].Since
	want := s.setMany("shop", 1000, 3*time.Second)
	due := map[string]int64{}
	for _, w := range want {
		key, _, _ := strings.Cut(w, "=")
		due[key] = s.due(key)
	}
	s.holds("shop", 1000)
	s.do("FCALL", "timer_set", 1, "shop:m:t:3", "newer", "PX", 4000)
	cmd, _ := s.command("resume", "shop", "--shift")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, patience, func() bool {
		hold, ok := s.do("HGET", "timerd:{t}:holds", "shop").(string) // not ok: the resume is over already
		return !ok || len(hold) > 100
	}, "the resume to be noted")
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	a.kill()
	s.start()
	all := s.expect(c, append(want, "shop:m:t:3=newer")...)
	shift := int64(0)
	for _, e := range all {
		if string(e.Data) == `"newer"` || string(e.Data) == "newer" {
			continue
		}
		by := e.Due.UnixMilli() - due[e.Key.String()]
		if shift == 0 {
			shift = by
		}
		if by != shift {
			t.Errorf("%s was shifted by %d ms, another one by %d", e.ID, by, shift)
		}
	}
	if longest := time.Since(since).Milliseconds(); shift <= 0 || shift > longest {
		t.Errorf("shifted by %d ms, want the length of the hold, at most %d", shift, longest)
	}
	testenv.Eventually(t, patience, func() bool { return len(s.heldNow()) == 0 }, "the resume to be over")
	s.settled()
}

// What the Go client holds and begins to resume, the timerds hold and release, though one is stopped and another is killed.
func TestHoldsOfTheGoClient(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	a, b := s.start(), s.start()
	c := s.collect()
	timers := client.New(s.rdb)
	b.signal(syscall.SIGSTOP)
	held, err := timers.Hold(t.Context(), "shop", client.Reason("outage"))
	if err != nil || held.Already {
		t.Fatalf("Hold = %+v, %v", held, err)
	}
	want := s.setMany("shop", 600, 100*time.Millisecond)
	b.signal(syscall.SIGCONT)
	s.holds("shop", 600)
	if v := s.heldNow()[0]; v.Reason != "outage" || !strings.Contains(v.By, "@") || !v.Since.Equal(held.Since) {
		t.Errorf("holds --json: %+v, want that of the client since %v", v, held.Since)
	}
	ctx, cancel := context.WithCancel(t.Context())
	resumed := make(chan error, 1)
	go func() { resumed <- timers.Resume(ctx, "shop", client.ResumeRate(150)) }()
	c.WaitFunc(patience, atLeast(50))
	cancel()
	if err := <-resumed; !errors.Is(err, context.Canceled) {
		t.Errorf("Resume = %v, want it interrupted", err)
	}
	a.kill()
	all := s.expect(c, want...)
	slices.SortFunc(all, func(a, b event.Event) int { return a.Time.Compare(b.Time) })
	if took, want := all[599].Time.Sub(all[0].Time), 600*time.Second/150; took < want*9/10 {
		t.Errorf("600 at 150 a second took %s, want %s", took, want)
	}
	testenv.Eventually(t, patience, func() bool { return len(s.heldNow()) == 0 }, "the resume to be over")
	s.settled()
}

// Overlapping holds, one of which ends by itself; and a hold that survives a restart of Redis and of timerd.
func TestHoldsOverlapAndEnd(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	p := s.start()
	c := s.collect()
	s.says(0, "hold shop --for 12s --reason short")
	s.says(0, "hold shop:order")
	s.do("FCALL", "timer_set", 1, "shop:order:t:1", "order", "PX", 300)
	s.do("FCALL", "timer_set", 1, "shop:basket:t:1", "basket", "PX", 300)
	s.holds("shop", 2)
	p.kill()
	s.redis.Kill()
	s.redis.Start()
	s.start()
	s.expect(c, "shop:basket:t:1=basket")
	s.holds("shop:order", 1)
	s.says(0, "resume shop:order", "shop:order resumed")
	s.expect(c, "shop:basket:t:1=basket", "shop:order:t:1=order")
	s.settled()
}

// In a cluster, with a failover while timers are held and another while they are released.
func TestClusterHolds(t *testing.T) {
	t.Parallel()
	s := newClusterSystem(t, true)
	p := s.start()
	s.start()
	c := s.collect()
	wrong, told := s.command("hold", "load")
	wrong.Env = append(wrong.Env, "TIMERD_REDIS_MODE=standalone", "TIMERD_REDIS_URL="+s.cluster.Nodes[0].URL(0))
	if err := wrong.Run(); err == nil || !strings.Contains(told.String(), "set TIMERD_REDIS_MODE=cluster") {
		t.Errorf("hold on a node as on a single server: %v\n%s", err, told)
	}
	s.says(0, "hold load:held", "load:held held")
	want := s.load("held", 600, 2*time.Second, 2*time.Second)
	others := s.load("free", 300, 2*time.Second, 2*time.Second)
	s.expect(c, others...)
	s.cluster.Failover(s.cluster.Nodes[3])
	s.holds("load:held", 600)
	s.says(0, "cancel load:held:t:4", "cancelled")
	want = slices.DeleteFunc(want, func(w string) bool { return w == "load:held:t:4=4" })
	cmd, said := s.command("resume", "load:held", "--rate", "100/s")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c.WaitFunc(patience, atLeast(len(others)+100))
	s.cluster.Failover(s.cluster.Nodes[4])
	p.kill()
	all := s.expect(c, append(want, others...)...)
	if err := cmd.Wait(); err != nil {
		t.Errorf("resume: %v\n%s", err, said)
	}
	all = slices.DeleteFunc(all, func(e event.Event) bool { return e.Key.Module == "free" })
	slices.SortFunc(all, func(a, b event.Event) int { return a.Time.Compare(b.Time) })
	if took := all[len(all)-1].Time.Sub(all[0].Time); took < 5*time.Second {
		t.Errorf("599 at 100 a second took %s", took)
	}
	s.emptied()
	if views := s.heldNow(); len(views) > 0 {
		t.Errorf("still held: %+v", views)
	}
}

// Held timers become dead letters, once each, through kills, and while TIMERS_DEAD takes none at first.
func TestResumeToDeadLetters(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	p := s.start()
	c := s.collect()
	dead := testenv.Collect(t, s.js, "TIMERS_DEAD")
	s.limitDead(1)
	s.says(0, "hold shop")
	want := s.setMany("shop", 300, 300*time.Millisecond)
	s.holds("shop", 300)
	cmd, _ := s.command("resume", "shop", "--dead")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s.do("FCALL", "timer_set", 1, "other:m:t:1", "free", "PX", 1000)
	s.expect(c, "other:m:t:1=free") // though no letter is taken
	p.kill()
	s.start()
	s.limitDead(-1)
	s.areHeldLetters(dead, want)
	s.expect(c, "other:m:t:1=free")
	if err := cmd.Wait(); err != nil {
		t.Errorf("resume: %v", err)
	}
	s.settled()
}

// areHeldLetters waits for the dead letters of held timers, and checks that there are no others.
func (s *system) areHeldLetters(dead *testenv.Collector, want []string) {
	s.t.Helper()
	var got []string
	for _, m := range dead.Wait(len(want), patience) {
		e, err := event.Parse(m.Data)
		if err != nil || e.Type != event.TypeDead || e.DeadReason != event.ReasonHeld {
			s.t.Fatalf("letter %s: %v", m.Data, err)
		}
		got = append(got, payloads([]event.Event{e})...)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		s.t.Errorf("dead letters of %q, want %q", got, want)
	}
}

// A resume that begins while NATS is away, and so before timerd has looked at what is due, counts for that too, though another
// hold has held timers already.
func TestResumeOfWhatNobodyHasLookedAt(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.start()
	c := s.collect()
	dead := testenv.Collect(t, s.js, "TIMERS_DEAD")
	s.says(0, "hold shop")
	s.setMany("shop", 1, 100*time.Millisecond)
	s.holds("shop", 1)
	s.nats.Stop()
	s.says(0, "hold pay")
	want := s.setMany("pay", 300, 300*time.Millisecond)
	testenv.Eventually(t, patience, func() error {
		if left := s.rdb.PTTL(t.Context(), "pay:m:t:298").Val(); left > 0 {
			return fmt.Errorf("the last one is due in %s", left)
		}
		return nil
	}, "the timers to be due")
	cmd, _ := s.command("resume", "pay", "--dead")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, patience, func() bool {
		return s.rdb.Exists(t.Context(), keys.Single.Resuming()).Val() == 1
	}, "the resume to begin")
	s.nats.Start()
	s.areHeldLetters(dead, want)
	if err := cmd.Wait(); err != nil {
		t.Errorf("resume: %v", err)
	}
	s.says(0, "resume shop")
	s.expect(c, "shop:m:t:0=0")
	s.settled()
}
