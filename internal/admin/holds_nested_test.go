package admin_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/admin"
	"github.com/timerd-io/timerd/internal/devserver"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

const patience = 30 * time.Second

// world is a schedule whose timers the test claims itself.
type world struct {
	t        *testing.T
	rdb      *redis.Client
	schedule *schedule.Schedule
	node     *schedule.Node
	fired    map[string]string // the fate of claimed timers: fired, dead
}

func newWorld(t *testing.T, opts ...devserver.RedisOption) *world {
	t.Helper()
	rdb := testenv.Redis(t, opts...).Client()
	s := schedule.New(rdb, schedule.DefaultMaxPayload)
	if _, err := s.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	nodes, err := s.Nodes(t.Context())
	if err != nil || len(nodes) != 1 {
		t.Fatalf("%d nodes, %v", len(nodes), err)
	}
	if err := nodes[0].StartHearing(t.Context()); err != nil {
		t.Fatal(err)
	}
	return &world{t: t, rdb: rdb, schedule: s, node: nodes[0], fired: map[string]string{}}
}

// caller returns the holds as a command has them.
func (w *world) caller() *admin.Holds {
	h := admin.NewHolds(w.schedule)
	h.Logger = slog.New(slog.DiscardHandler)
	return h
}

func (w *world) namespace(text string) keys.Namespace {
	w.t.Helper()
	n, err := keys.ParseNamespace(text)
	if err != nil {
		w.t.Fatal(err)
	}
	return n
}

func (w *world) hold(namespace string) {
	w.t.Helper()
	if held, err := w.caller().Hold(w.t.Context(), schedule.Hold{Namespace: w.namespace(namespace)}, 0); err != nil ||
		len(held.Missing) > 0 {
		w.t.Fatalf("hold %s: %+v, %v", namespace, held, err)
	}
}

// resume resumes a namespace, and returns the last progress.
func (w *world) resume(namespace string, kind schedule.ResumeKind) (last admin.ResumeProgress) {
	w.t.Helper()
	err := w.caller().Resume(w.t.Context(), w.namespace(namespace), schedule.Resume{Kind: kind, Rate: 1000},
		func(p admin.ResumeProgress) {
			last = p
			w.claim() // as timerds do meanwhile
		})
	if err != nil {
		w.t.Fatalf("resume %s: %v", namespace, err)
	}
	return last
}

// becomeDue sets timers and waits until they are due.
func (w *world) becomeDue(names ...string) {
	w.t.Helper()
	var last int64
	for _, name := range names {
		due, err := w.rdb.FCall(w.t.Context(), "timer_set", []string{name}, "p", "PX", 20).Int64()
		if err != nil {
			w.t.Fatal(err)
		}
		last = max(last, due)
	}
	testenv.Eventually(w.t, patience, func() bool {
		now, err := w.rdb.Time(w.t.Context()).Result()
		return err == nil && now.UnixMilli() > last
	}, "the due time")
	w.claim()
}

// claim claims the free timers, and looks at the others.
func (w *world) claim() {
	w.t.Helper()
	for range 3 { // timers moved by one claim are read by the next
		for _, result := range w.node.Claim(w.t.Context(), []schedule.ClaimRequest{{Partition: keys.Single}},
			time.Minute) {
			if result.Err != nil {
				w.t.Fatal(result.Err)
			}
			for _, f := range result.Firings {
				became := "fired"
				if f.Held {
					became = "dead"
				}
				name := f.Key.String()
				if w.fired[name] != "" {
					became = w.fired[name] + " and " + became
				}
				w.fired[name] = became
			}
			if err := w.schedule.Settle(w.t.Context(), schedule.Outcomes(schedule.OutcomeFired,
				result.Firings...)); err != nil {
				w.t.Fatal(err)
			}
		}
	}
}

// carryOn does a timerd's work for holds until none is left and the released timers are claimed.
func (w *world) carryOn() {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.caller().Run(ctx)
	}()
	testenv.Eventually(w.t, patience, func() error {
		w.claim()
		list, err := w.schedule.Holds(ctx)
		if err == nil && len(list.Holds) > 0 {
			err = fmt.Errorf("%+v", list.Holds)
		}
		return err
	}, "the end of all holds")
	cancel()
	<-done
	w.claim()
}

// became checks the fates of timers, at the latest once timers spaced by a rate are claimed.
func (w *world) became(want string) {
	w.t.Helper()
	testenv.Eventually(w.t, patience, func() error {
		w.claim()
		var got []string
		for _, name := range slices.Sorted(maps.Keys(w.fired)) {
			got = append(got, name+" "+w.fired[name])
		}
		if said := strings.Join(got, ", "); said != want {
			return errors.New(said)
		}
		return nil
	}, want)
}

func (w *world) keeps(p admin.ResumeProgress, timers int64, by string) {
	w.t.Helper()
	if got := fmt.Sprint(p.KeptBy); p.Kept != timers || got != by {
		w.t.Errorf("%d are kept by %s, want %d by %s", p.Kept, got, timers, by)
	}
}

// A resume of timers under another hold too is kept, and applies when that ends: of several the narrowest namespace
// decides, whichever was resumed first. Timers due after a resume belong to the other one.
func TestNestedResumes(t *testing.T) {
	t.Parallel()
	const now, rate, dead = schedule.ResumeNow, schedule.ResumeRate, schedule.ResumeDead
	for name, c := range map[string]struct {
		first, second         string // namespaces
		firstKind, secondKind schedule.ResumeKind
		kept                  int64 // by the second hold
		want                  string
	}{
		"dead below now": {"app:pay", "app", dead, now, 2,
			"app:pay:t:1 dead, app:pay:t:2 dead, app:pay:t:later fired, app:x:t:1 fired, app:x:t:later fired"},
		"now below dead": {"app:pay", "app", now, dead, 2,
			"app:pay:t:1 fired, app:pay:t:2 fired, app:pay:t:later dead, app:x:t:1 dead, app:x:t:later dead"},
		"rate below dead": {"app:pay", "app", rate, dead, 2,
			"app:pay:t:1 fired, app:pay:t:2 fired, app:pay:t:later dead, app:x:t:1 dead, app:x:t:later dead"},
		"dead below rate": {"app:pay", "app", dead, rate, 2,
			"app:pay:t:1 dead, app:pay:t:2 dead, app:pay:t:later fired, app:x:t:1 fired, app:x:t:later fired"},
		"dead above now": {"app", "app:pay", dead, now, 2,
			"app:pay:t:1 fired, app:pay:t:2 fired, app:pay:t:later fired, app:x:t:1 dead, app:x:t:later fired"},
		"now above dead": {"app", "app:pay", now, dead, 2,
			"app:pay:t:1 dead, app:pay:t:2 dead, app:pay:t:later dead, app:x:t:1 fired, app:x:t:later fired"},
		"crosswise": {"*:pay", "app", dead, now, 2,
			"app:pay:t:1 dead, app:pay:t:2 dead, app:pay:t:later fired, app:x:t:1 fired, app:x:t:later fired"},
		"of a namespace without timers": {"app:y", "app", dead, now, 0,
			"app:pay:t:1 fired, app:pay:t:2 fired, app:pay:t:later fired, app:x:t:1 fired, app:x:t:later fired"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.hold(c.first)
			w.hold(c.second)
			w.becomeDue("app:pay:t:1", "app:pay:t:2", "app:x:t:1")
			by := "[]"
			if c.kept > 0 {
				by = fmt.Sprintf("[%s]", c.second)
			}
			w.keeps(w.resume(c.first, c.firstKind), c.kept, by)
			w.becomeDue("app:pay:t:later", "app:x:t:later")
			w.resume(c.second, c.secondKind)
			w.carryOn()
			w.became(c.want)
		})
	}
}

// Two resumes that are noted before anybody releases: the narrower decides.
func TestNestedResumesAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.hold("app")
	w.hold("app:pay")
	w.becomeDue("app:pay:t:1", "app:x:t:1")
	for namespace, kind := range map[string]schedule.ResumeKind{"app": schedule.ResumeDead,
		"app:pay": schedule.ResumeNow} {
		list, err := w.schedule.Holds(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		h := *list.Find(w.namespace(namespace))
		h.Resume = &schedule.Resume{Kind: kind, At: list.Now}
		if err := list.Put(t.Context(), h); err != nil {
			t.Fatal(err)
		}
	}
	w.carryOn()
	w.became("app:pay:t:1 fired, app:x:t:1 dead")
}

// A shift that is kept moves the timers by the length of its own hold, once they come free.
func TestNestedShift(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.hold("app:pay")
	w.hold("app")
	w.becomeDue("app:pay:t:1", "app:x:t:1")
	w.keeps(w.resume("app:pay", schedule.ResumeShift), 1, "[app]")
	w.resume("app", schedule.ResumeNow)
	w.carryOn()
	testenv.Eventually(t, patience, func() bool {
		w.claim()
		return w.fired["app:pay:t:1"] != ""
	}, "the timer that was shifted")
	w.became("app:pay:t:1 fired, app:x:t:1 fired")
}

// A resume that waits for another hold alone asks for nothing until the list of holds changes.
func TestKeptResumeIsQuiet(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.hold("app:pay")
	w.hold("app")
	w.becomeDue("app:pay:t:1")
	w.keeps(w.resume("app:pay", schedule.ResumeDead), 1, "[app]")
	ctx, cancel := context.WithCancel(t.Context())
	done, rounds := make(chan struct{}), make(chan struct{}, 100)
	caller := w.caller()
	caller.OnList = func(*schedule.HoldList) { rounds <- struct{}{} }
	go func() {
		defer close(done)
		caller.Run(ctx)
	}()
	count := func() (n int) {
		said := w.rdb.Info(ctx, "commandstats").Val()
		for line := range strings.Lines(said) {
			if rest, ok := strings.CutPrefix(line, "cmdstat_evalsha:calls="); ok {
				_, _ = fmt.Sscanf(rest, "%d", &n)
			}
		}
		return n
	}
	for range 6 { // it looks once at each timer, and perhaps for lost ones
		<-rounds
	}
	before := count()
	for range 3 {
		<-rounds
	}
	if n := count() - before; n > 3 { // a round each second
		t.Errorf("%d calls in three rounds, want none but to compare the copies of the list", n)
	}
	cancel()
	<-done
}

// A resume that somebody else's hold ends says so, and that the rest stays held.
func TestResumeThatAnotherHoldEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.hold("app")
	w.becomeDue("app:x:t:1", "app:x:t:2", "app:x:t:3")
	told, ended := make(chan struct{}, 100), make(chan error, 1)
	go func() {
		slowly := schedule.Resume{Kind: schedule.ResumeRate, Rate: admin.MinRate}
		ended <- w.caller().Resume(t.Context(), w.namespace("app"), slowly, func(p admin.ResumeProgress) {
			if p.Released > 0 {
				told <- struct{}{}
			}
		})
	}()
	<-told
	w.hold("app")
	err := <-ended
	if !errors.Is(err, admin.ErrHeldAnew) || !strings.Contains(err.Error(),
		"released 1 of its timers, the rest stays held") {
		t.Errorf("%v, want that it was held anew", err)
	}
}
