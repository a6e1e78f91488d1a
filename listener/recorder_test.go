package listener_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/listener"
	"github.com/timerd-io/timerd/schedule"
)

const bound = time.Minute

// recorder is a running listener with its reports.
type recorder struct {
	*listener.Listener
	t   testing.TB
	rdb *redis.Client // of the test

	mu       sync.Mutex
	gaps     []string
	wakes    []schedule.Millis
	node     *schedule.Node
	complete []bool
	refused  []string
	observed schedule.Observed
	beyond   []bool
	audited  chan struct{}
	asked    map[string]int // the number of hints of each key handed to the schedule
	apps     func()         // called before the apps are read, unless nil
	hear     func()         // called before a session begins, unless nil
}

// The recorder is the Coverage, the Agenda and the Metrics of its listener.
func (r *recorder) Gap(reason string)        { r.note(func() { r.gaps = append(r.gaps, reason) }) }
func (r *recorder) SetComplete(c bool)       { r.note(func() { r.complete = append(r.complete, c) }) }
func (r *recorder) SetBeyond(b bool)         { r.note(func() { r.beyond = append(r.beyond, b) }) }
func (r *recorder) Audited() <-chan struct{} { return r.audited }

func (r *recorder) Wake(_ keys.Partition, due schedule.Millis) {
	r.note(func() { r.wakes = append(r.wakes, due) })
}
func (r *recorder) Claimed(keys.Partition, schedule.Millis, schedule.Millis) {}

func (r *recorder) Observed(o schedule.Observed) { r.note(func() { r.observed.Add(o) }) }
func (r *recorder) Set()                         {}
func (r *recorder) Refused(key string, _ error) {
	r.note(func() { r.refused = append(r.refused, key) })
}

// claims is an Agenda that takes only the claims of others.
type claims func(p keys.Partition, at, next schedule.Millis)

func (claims) Wake(keys.Partition, schedule.Millis) {}

func (c claims) Claimed(p keys.Partition, at, next schedule.Millis) { c(p, at, next) }

// askedNode is a node that records its hints.
type askedNode struct {
	*schedule.Node
	r *recorder
}

func (n askedNode) Observe(ctx context.Context, hints []schedule.Hint, heard time.Time) (schedule.Observed, error) {
	n.r.note(func() {
		for _, h := range hints {
			n.r.asked[h.Key]++
		}
	})
	return n.Node.Observe(ctx, hints, heard)
}

func (n askedNode) Apps(ctx context.Context) ([]string, error) {
	n.r.call(&n.r.apps)
	return n.Node.Apps(ctx)
}

func (n askedNode) StartHearing(ctx context.Context) error {
	n.r.call(&n.r.hear)
	return n.Node.StartHearing(ctx)
}

// call calls a function of the test, if there is one.
func (r *recorder) call(f *func()) {
	var called func()
	r.note(func() { called = *f })
	if called != nil {
		called()
	}
}

// listen starts a listener that uses the client conn, on the server of rdb. It is patient, because each new
// subscription misses events.
func listen(t testing.TB, rdb, conn *redis.Client, namespaces string, configure ...func(*listener.Listener)) *recorder {
	t.Helper()
	return listenTo(t, schedule.New(rdb, schedule.DefaultMaxPayload), rdb, conn, namespaces, configure...)
}

// listenTo is listen for the first node of a schedule.
func listenTo(t testing.TB, s *schedule.Schedule, rdb, conn *redis.Client, namespaces string,
	configure ...func(*listener.Listener)) *recorder {
	t.Helper()
	set, err := keys.ParseNamespaces(namespaces)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	nodes, err := s.Nodes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r := &recorder{t: t, rdb: rdb, node: nodes[0], asked: map[string]int{}, audited: make(chan struct{})}
	r.Listener = listener.New(conn, askedNode{nodes[0], r}, r, 0, set, fmt.Sprintf("test%p", r))
	r.CanaryInterval, r.CanaryTimeout = time.Second, 20*time.Second
	r.Agenda, r.Metrics = r, r
	for _, c := range configure {
		c(r.Listener)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return r
}

func (r *recorder) note(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
}

// eventually waits for a condition on the reports.
func (r *recorder) eventually(what string, cond func() bool) {
	r.t.Helper()
	testenv.Eventually(r.t, bound, func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if cond() {
			return nil
		}
		return fmt.Errorf("gaps %q, wakes %v, complete %v, refused %.80q, observed %+v", r.gaps, r.wakes, r.complete,
			r.refused, r.observed)
	}, what)
}

func (r *recorder) healthy() {
	r.t.Helper()
	testenv.Eventually(r.t, bound, r.Healthy, "events to flow")
}

// gapsSeen returns the number of gaps reported.
func (r *recorder) gapsSeen() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.gaps)
}

// gapAfter waits for a gap beyond the first n, and for events to flow again.
func (r *recorder) gapAfter(n int) {
	r.t.Helper()
	r.eventually("a gap to be noticed", func() bool { return len(r.gaps) > n })
	r.healthy()
}

// adopts sets a timer and waits until the index has it. After a gap, which an audit would close, it sets the timer
// again.
func (r *recorder) adopts(key string) {
	r.t.Helper()
	gaps := -1
	testenv.Eventually(r.t, bound, func() error {
		if now := r.gapsSeen(); now != gaps {
			gaps = now
			if err := r.rdb.Set(r.t.Context(), key, "p", time.Hour).Err(); err != nil {
				return err
			}
		}
		return r.rdb.ZScore(r.t.Context(), keys.Single.Due(), key).Err()
	}, fmt.Sprintf("%q to be in the index", key))
}

// indexed waits until the index has a key, or no longer has it.
func (r *recorder) indexed(key string, want bool) {
	r.t.Helper()
	testenv.Eventually(r.t, bound, func() bool {
		err := r.rdb.ZScore(context.Background(), keys.Single.Due(), key).Err()
		return (err == nil) == want
	}, fmt.Sprintf("%q in the index to be %v", key, want))
}
