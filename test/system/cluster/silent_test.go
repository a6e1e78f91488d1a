package cluster_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/devserver"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/test/system"
)

// partial has the other masters of a cluster serve their slots while one is away.
func partial() devserver.RedisOption {
	return devserver.Directive("cluster-require-full-coverage", "no")
}

// owner returns the node that a slot was given to at the start of a cluster. It asks nobody.
func (s *clusterSystem) owner(slot int) *testenv.RedisServer {
	nodes := s.cluster.Nodes
	i := len(nodes) - 1
	for slot < i*keys.Slots/len(nodes) {
		i--
	}
	return nodes[i]
}

// keysOn returns n keys of timers on a node.
func (s *clusterSystem) keysOn(node *testenv.RedisServer, prefix string, n int) (all []string) {
	for i := 0; len(all) < n; i++ {
		if key := fmt.Sprintf("%s:b:c:%d", prefix, i); s.owner(keys.Slot(key)) == node {
			all = append(all, key)
		}
	}
	return all
}

// setOn sets timers on a node, without asking another one.
func (s *clusterSystem) setOn(node *testenv.RedisServer, in time.Duration, all ...string) (want []string) {
	s.T.Helper()
	client := node.Client()
	for _, key := range all {
		s.try("timer_set "+key, func() error {
			return client.FCall(s.T.Context(), "timer_set", []string{key}, "p", "PX", in.Milliseconds()).Err()
		})
		want = append(want, key+"=p")
	}
	return want
}

// A timerd that starts while a master is away serves the others within 10 s, and that one when it is back.
func TestClusterStartsWithoutAMaster(t *testing.T) {
	t.Parallel()
	installation, list := keys.Slot(keys.Installation), keys.Single.Slot()
	for _, test := range []struct {
		name   string
		slot   int  // whose master is away
		silent bool // it does not answer; else it refuses
		first  bool // no timerd has run before
	}{
		{"refuses", list, false, false},
		{"is silent", list, true, false},
		{"is silent at the first start", installation, true, true},
		{"refuses the first start", installation, false, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := newClusterSystem(t, false, partial())
			if !test.first {
				s.Start().Stop()
			}
			victim := s.owner(test.slot)
			other := s.cluster.Nodes[0]
			if other == victim {
				other = s.cluster.Nodes[1]
			}
			if test.silent {
				victim.Pause()
			} else {
				victim.Kill()
			}
			watch := testenv.StartStopwatch()
			p := s.Launch()
			c := s.Collect()
			want := s.setOn(other, 10*time.Millisecond, s.keysOn(other, "early", 20)...)
			s.Expect(c, want...)
			watch.AtMost(t, 10*time.Second, "the start, until timers fire")
			p.ReadySays(http.StatusServiceUnavailable, "redis: failed: "+victim.Addr()+": ")
			if test.silent {
				victim.Resume()
			} else {
				victim.Start()
			}
			p.AwaitReady(true)
			want = append(want, s.setOn(victim, 10*time.Millisecond, s.keysOn(victim, "late", 20)...)...)
			s.Expect(c, want...)
			p.Stop()
		})
	}
}

// othersOf returns the nodes but one.
func (s *clusterSystem) othersOf(victim *testenv.RedisServer) (others []*testenv.RedisServer) {
	for _, node := range s.cluster.Nodes {
		if node != victim {
			others = append(others, node)
		}
	}
	return others
}

// fromApp waits for n events of an app.
func fromApp(app string, n int) func([]testenv.Message) error {
	return func(all []testenv.Message) error {
		got := 0
		for _, m := range all {
			if strings.HasPrefix(m.ID(), app+":") {
				got++
			}
		}
		if got < n {
			return fmt.Errorf("%d of %d events of %s", got, n, app)
		}
		return nil
	}
}

// A silent master does not stop other masters' timers from repeating, or their retries. Its own follow when it is back.
func TestClusterSilentMasterDelaysNoOther(t *testing.T) {
	t.Parallel()
	const every, lasts = 400, 6 * time.Second
	s := newClusterSystem(t, false, partial())
	s.Env["TIMERD_RETRY"] = "*=50ms"
	p := s.Start()
	c := s.Collect()
	victim := s.cluster.Nodes[1]
	healthy := map[string]int{} // occurrences of repeating timers on the others
	for _, node := range s.cluster.Nodes {
		client := node.Client()
		n, interval := 15, every
		if node == victim { // so that some of its firings wait to be settled when it falls silent
			n, interval = 60, every/2
		}
		for _, key := range s.keysOn(node, "repeats", n) {
			if err := client.FCall(t.Context(), "timer_repeat", []string{key}, "p", "EVERY",
				interval).Err(); err != nil {
				t.Fatal(err)
			}
			if node != victim {
				healthy[key] = 0
			}
		}
	}
	c.WaitFunc(system.Patience, system.AtLeast(200)) // all repeat
	victim.Pause()
	paused := time.Now()
	var fired int
	testenv.Eventually(t, system.Patience, func() bool { fired = c.Len(); return time.Since(paused) > time.Second },
		"the silence")

	lost := s.keysOn(victim, "lost", 600)
	s.Ask(lost...)
	app := "good"
	var good []string
	for _, node := range s.othersOf(victim) {
		good = append(good, s.keysOn(node, app, 100)...)
	}
	asked := testenv.StartStopwatch()
	s.Ask(good...)
	testenv.Eventually(t, system.Patience, func() bool { return time.Since(paused) > lasts }, "the silence to last")
	meanwhile := c.All()[fired:]
	c.WaitFunc(system.Patience, fromApp(app, len(good)))
	asked.AtMost(t, lasts, "retries on the others")
	for _, m := range meanwhile {
		e, err := event.Parse(m.Data)
		if err != nil {
			t.Fatal(err)
		}
		if _, is := healthy[e.Key.String()]; is {
			healthy[e.Key.String()]++
		}
	}
	least := int((lasts-time.Second)/(every*time.Millisecond)) / 2 // the machine may be slow
	for key, n := range healthy {
		if n < least {
			t.Errorf("%s has fired %d times beside a silent master, want at least %d", key, n, least)
		}
	}
	victim.Resume()
	c.WaitFunc(system.Patience, fromApp("lost", len(lost)))
	s.NoRequests()
	p.AwaitReady(true)
	p.Stop()
}

// told runs a command, which must end with exit code 1 within 5 s, or little more on a busy machine, and name a server
// on standard error and some texts anywhere.
func (s *clusterSystem) told(victim *testenv.RedisServer, line string, texts ...string) (out string) {
	s.T.Helper()
	watch := testenv.StartStopwatch()
	code, out, errs := s.Run("", strings.Fields(line)...)
	watch.AtMost(s.T, commandWithin, "timerd "+line)
	if code != 1 || !strings.Contains(errs, victim.Addr()) {
		s.T.Errorf("timerd %s: exit code %d, want 1 and %s on standard error:\n%s%s", line, code, victim.Addr(), out,
			errs)
	}
	for _, text := range texts {
		if !strings.Contains(out+errs, text) {
			s.T.Errorf("timerd %s: want %q in\n%s%s", line, text, out, errs)
		}
	}
	return out
}

// letter publishes the dead letter of a timer.
func (s *clusterSystem) letter(key string) {
	s.T.Helper()
	k, err := keys.Parse(key)
	if err != nil {
		s.T.Fatal(err)
	}
	e := event.Event{Type: event.TypeDead, Key: k, Due: time.Now(), Attempt: 3, Data: []byte("x"),
		DeadReason: event.ReasonExhausted}
	e.ID = keys.EventID(key, e.Due.UnixMilli(), e.Attempt)
	if _, err := s.JS.Publish(s.T.Context(), k.Subject(keys.DefaultPrefix, keys.Dead), e.AppendJSON(nil)); err != nil {
		s.T.Fatal(err)
	}
}

// commandWithin is 5 s, plus the start and end of a program with the race detector.
const commandWithin = 6 * time.Second

// The command line shows the answering masters, acts on them, and names the silent one.
func TestClusterCommandsWithoutAMaster(t *testing.T) {
	t.Parallel()
	for _, silent := range []bool{true, false} {
		t.Run(fmt.Sprintf("silent %v", silent), func(t *testing.T) {
			t.Parallel()
			s := newClusterSystem(t, false, partial())
			p := s.Start()
			victim := s.cluster.Nodes[1]
			if victim == s.owner(keys.Single.Slot()) {
				victim = s.cluster.Nodes[2]
			}
			others := s.othersOf(victim)
			lost := s.keysOn(victim, "shop", 5)
			var there []string
			for _, node := range others {
				there = append(there, s.keysOn(node, "shop", 5)...)
				s.setOn(node, 10*time.Minute, s.keysOn(node, "shop", 5)...)
			}
			s.setOn(victim, 10*time.Minute, lost...)
			for _, node := range s.cluster.Nodes {
				s.letter(s.keysOn(node, "dead", 1)[0])
			}
			if silent {
				victim.Pause()
			} else {
				victim.Kill()
			}
			s.told(victim, "get "+lost[0])
			s.told(victim, "cancel "+lost[0])
			if out := s.OK("get", there[0]); !strings.Contains(out, there[0]) {
				t.Errorf("get of another master's:\n%s", out)
			}
			if out := s.told(victim, "ls --json"); strings.Count(out, "\n") != len(there) {
				t.Errorf("ls lists other than the %d timers of the others:\n%s", len(there), out)
			}
			s.told(victim, "forecast", "\n10 timers, and 0 due already")
			s.told(victim, "forecast shop", "\n10 timers, and 0 due already")
			s.told(victim, "status", "10 pending", "bring that server back")
			s.told(victim, "doctor", "bring that server back", "ok    redis version     "+others[0].Addr(),
				"ok    redis version     "+others[1].Addr())
			testenv.Eventually(t, system.Patience, func() error {
				code, out, errs := s.Run("", "audit")
				if code != 1 || !strings.Contains(out, "10 timers audited in ") ||
					!strings.Contains(errs, victim.Addr()+" does not answer") {
					return fmt.Errorf("exit code %d:\n%s%s", code, out, errs)
				}
				return nil
			}, "an audit of the others")
			s.told(victim, "hold pay", "timers of pay may still be claimed by: "+victim.Addr(), "the hold stands")
			s.told(victim, "holds", "pay ")
			s.told(victim, "resume pay", "0 timers of pay are released, but those of "+victim.Addr()+" are not")
			s.told(victim, "cancel --all shop --yes", "10 cancelled, 0 too late")
			s.told(victim, "dead replay --yes", "2 replayed, 0 skipped", "1 dead letters stay")
			if silent {
				victim.Resume()
			} else {
				victim.Start()
			}
			s.SaysAtLast("ls shop --json", lost[4])
			s.SaysAtLast("dead replay --yes", "1 replayed, 0 skipped")
			testenv.Eventually(t, system.Patience, func() error { // the timerd has finished the resume
				if _, out, _ := s.Run("", "holds", "--json"); out != "" {
					return fmt.Errorf("holds: %s", out)
				}
				return nil
			}, "the end of the resume")
			p.Stop()
		})
	}
}

// The console shows the other masters' timers, in its pages and as JSON, and names the silent one.
func TestClusterConsoleWithoutAMaster(t *testing.T) {
	t.Parallel()
	s := newClusterSystem(t, false, partial())
	addr := testenv.FreeAddr(t)
	s.Start("TIMERD_CONSOLE_ADDR=" + addr)
	victim := s.othersOf(s.owner(keys.Single.Slot()))[0]
	s.SaysAtLast("hold pay", "pay held")
	for _, node := range s.cluster.Nodes {
		client := node.Client()
		s.setOn(node, 10*time.Minute, s.keysOn(node, "shop", 5)...)
		for _, key := range s.keysOn(node, "often", 2) {
			if err := client.FCall(t.Context(), "timer_repeat", []string{key}, "p", "EVERY",
				3_600_000).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	ask := func(path string) (int, string) {
		t.Helper()
		watch := testenv.StartStopwatch()
		defer watch.AtMost(t, 5*time.Second, path)
		resp, err := http.Get("http://" + addr + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body)
	}
	if status, body := ask("/api/v1/timers?q=shop"); status != http.StatusOK || strings.Count(body, `"key"`) != 15 ||
		strings.Contains(body, `"missing"`) {
		t.Fatalf("while all answer: %d %s", status, body)
	}
	victim.Pause()
	ask("/") // which may still count on it
	gone := s.keysOn(victim, "shop", 1)[0]
	for _, page := range []struct {
		path   string
		status int
		rows   int // of JSON
		word   string
	}{
		{"/", http.StatusOK, 0, ""},
		{"/api/v1/overview", http.StatusOK, 0, `"pending": 14,`},
		{"/timers?q=shop", http.StatusOK, 0, "shop"},
		{"/api/v1/timers?q=shop", http.StatusOK, 10, `"missing"`},
		{"/repeating", http.StatusOK, 0, "often"},
		{"/api/v1/repeating", http.StatusOK, 4, `"missing"`},
		{"/holds", http.StatusOK, 0, "pay"},
		{"/api/v1/holds", http.StatusOK, 0, `"missing"`},
		{"/api/v1/search?q=shop%20" + gone[len("shop:b:c:"):], http.StatusOK, 0, `"missing"`},
		{"/timers/" + gone, http.StatusOK, 0, "does not answer"},
		{"/api/v1/timers/" + gone, http.StatusServiceUnavailable, 0, "does not answer"},
	} {
		status, body := ask(page.path)
		rows := strings.Count(body, `"key"`)
		if status != page.status || !strings.Contains(body, victim.Addr()) || !strings.Contains(body, page.word) ||
			page.rows > 0 && rows != page.rows {
			t.Errorf("%s: %d, %d rows; want %d, %d, %s and %s in\n%s", page.path, status, rows, page.status, page.rows,
				victim.Addr(), page.word, body)
		}
	}
	victim.Resume()
	testenv.Eventually(t, system.Patience, func() error {
		if _, body := ask("/api/v1/timers?q=shop"); strings.Count(body, `"key"`) != 15 ||
			strings.Contains(body, `"missing"`) {
			return errors.New(body)
		}
		return nil
	}, "the timers of all masters")
}

// Where the missing master has the list of holds, nothing is held or resumed.
func TestClusterHoldsWithoutTheirList(t *testing.T) {
	t.Parallel()
	s := newClusterSystem(t, false, partial())
	p := s.Start()
	s.SaysAtLast("hold pay", "pay held")
	victim := s.owner(keys.Single.Slot())
	other := s.othersOf(victim)[0]
	s.setOn(other, 10*time.Minute, s.keysOn(other, "shop", 5)...)
	victim.Pause()
	s.told(victim, "hold shop", "nothing is changed")
	s.told(victim, "resume pay", "nothing is changed")
	s.told(victim, "holds")
	if out := s.told(victim, "ls --json"); strings.Count(out, "\n") != 5 {
		t.Errorf("ls lists other than the timers of the others:\n%s", out)
	}
	s.told(victim, "status", "5 pending")
	victim.Resume()
	testenv.Eventually(t, system.Patience, func() error {
		if views := s.HeldNow(); len(views) != 1 || views[0].Namespace != "pay" || views[0].Resume != nil {
			return fmt.Errorf("%+v", views)
		}
		return nil
	}, "the hold to be as it was")
	p.Stop()
}

// While one master is silent, a resume releases the others' timers, names the rest, and lets others carry on.
func TestClusterResumeWithoutAMaster(t *testing.T) {
	t.Parallel()
	s := newClusterSystem(t, false, partial())
	p := s.Start()
	c := s.Collect()
	list := s.owner(keys.Single.Slot())
	victim := s.othersOf(list)[0]
	s.SaysAtLast("hold pay", "pay held")
	var want []string
	for _, node := range s.othersOf(victim) {
		want = append(want, s.setOn(node, 10*time.Millisecond, s.keysOn(node, "pay", 40)...)...)
	}
	left := s.setOn(victim, 10*time.Millisecond, s.keysOn(victim, "pay", 40)...)
	s.Holds("pay", 120)
	resuming := func() string { return list.Client().Get(t.Context(), keys.Single.Resuming()).Val() }
	// The command alone is to release them, without waiting for its turn: timerd looks for orphans after each change of
	// the holds.
	testenv.Eventually(t, system.Patience, func() error {
		p.Signal(syscall.SIGSTOP)
		holder := resuming()
		if holder == "" {
			return nil
		}
		p.Signal(syscall.SIGCONT)
		return fmt.Errorf("it is the turn of %s", holder)
	}, "timerd stopped between two turns")
	victim.Pause()
	s.told(victim, "resume pay --rate 1000/s", "80 timers of pay are released, but those of "+victim.Addr()+" are not")
	if holder := resuming(); strings.HasPrefix(holder, "caller-") {
		t.Errorf("%s carries on resumes, and has ended", holder)
	}
	p.Signal(syscall.SIGCONT)
	s.Expect(c, slices.Clone(want)...)
	victim.Resume()
	s.Expect(c, append(want, left...)...)
	p.Stop()
}

// A hold made while a master was away applies there when it is back, for running timerds and for a new one.
func TestClusterHeldWhileAMasterIsAway(t *testing.T) {
	t.Parallel()
	s := newClusterSystem(t, false, partial())
	s.Start()
	c := s.Collect()
	victim := s.othersOf(s.owner(keys.Single.Slot()))[0]
	other := s.othersOf(victim)[0]
	held, free := s.keysOn(victim, "pay", 20), s.keysOn(victim, "shop", 20)
	client := victim.Client()
	due := client.Time(t.Context()).Val().Add(8 * time.Second).UnixMilli() // while the master is away, as a rule
	for _, key := range slices.Concat(held, free) {
		if err := client.FCall(t.Context(), "timer_set", []string{key}, "p", "PXAT", due).Err(); err != nil {
			t.Fatal(err)
		}
	}
	victim.Pause()
	s.told(victim, "hold pay", "the hold stands")
	want := s.setOn(other, 10*time.Millisecond, s.keysOn(other, "shop", 20)...)
	s.setOn(other, 10*time.Millisecond, s.keysOn(other, "pay", 20)...)
	s.Expect(c, slices.Clone(want)...)
	testenv.Eventually(t, system.Patience, func() bool {
		return other.Client().Time(
			t.Context()).Val().UnixMilli() > due
	}, "the timers to be due")
	s.Launch()
	victim.Resume()
	s.Holds("pay", 40)
	for _, key := range free {
		want = append(want, key+"=p")
	}
	s.Expect(c, want...)
}
