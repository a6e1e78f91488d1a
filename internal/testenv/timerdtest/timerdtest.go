// Package timerdtest has servers and a small timerd for the tests and examples of the Go client.
package timerdtest

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/admin"
	"github.com/timerd-io/timerd/internal/connect"
	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/notify"
	"github.com/timerd-io/timerd/reconciler"
	"github.com/timerd-io/timerd/schedule"
)

// Run runs, until t ends, the parts of timerd that fire timers set through the function library, and that carry out
// resumes.
func Run(t testing.TB, rdb *redis.Client, nc *nats.Conn) {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if err := streams.Ensure(t.Context(), js, streams.Config{}); err != nil {
		t.Fatal(err)
	}
	index := schedule.New(rdb, schedule.DefaultMaxPayload)
	if _, err := index.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	nodes, err := index.Nodes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	publisher := notify.NewPublisher(nc, js, index)
	fire := reconciler.New(nodes[0], publisher, keys.Namespaces{{}}, "test")
	fire.SweepInterval = 20 * time.Millisecond

	publishing, stopPublishing := context.WithCancel(context.WithoutCancel(t.Context()))
	firing, stopFiring := context.WithCancel(publishing)
	var first, second sync.WaitGroup
	second.Go(func() {
		if err := publisher.Run(publishing); err != nil {
			t.Error(err)
		}
	})
	first.Go(func() { fire.Run(firing) })
	first.Go(func() { admin.NewHolds(index).Run(firing) })
	t.Cleanup(func() {
		stopFiring()
		first.Wait()
		stopPublishing()
		second.Wait()
	})
}

// Redis starts a Redis with the function library in it, as a timerd leaves it, and no timerd.
func Redis(t testing.TB) *redis.Client {
	t.Helper()
	rdb := testenv.Redis(t).Client()
	if _, err := schedule.New(rdb, schedule.DefaultMaxPayload).Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	return rdb
}

// Now returns the time of a Redis's clock.
func Now(t testing.TB, rdb *redis.Client) time.Time {
	t.Helper()
	now, err := rdb.Time(t.Context()).Result()
	if err != nil {
		t.Fatal(err)
	}
	return now
}

// AwaitDue waits until a due time has passed on the server's clock.
func AwaitDue(t testing.TB, rdb *redis.Client, due time.Time) {
	t.Helper()
	testenv.Eventually(t, time.Minute, func() bool { return Now(t, rdb).After(due.Add(time.Millisecond)) },
		"the due time")
}

// Servers starts a Redis, a NATS and a timerd for an example. It makes its own testing.TB, because an example has none.
func Servers() (rdb *redis.Client, js jetstream.JetStream, stop func()) {
	t := &exampleTB{}
	natsServer := testenv.NATS(t)
	rdb = testenv.Redis(t).Client()
	Run(t, rdb, natsServer.Conn(connect.NATSOptions()...))
	return rdb, natsServer.JetStream(), t.stop
}

// exampleTB is the testing.TB of an example: a failure ends the test binary.
type exampleTB struct {
	testing.TB
	cleanups []func()
}

func (t *exampleTB) Helper()                           {}
func (t *exampleTB) Context() context.Context          { return context.Background() }
func (t *exampleTB) Cleanup(f func())                  { t.cleanups = append(t.cleanups, f) }
func (t *exampleTB) Failed() bool                      { return false }
func (t *exampleTB) Error(args ...any)                 { t.Fatal(args...) }
func (t *exampleTB) Errorf(format string, args ...any) { t.Fatalf(format, args...) }
func (t *exampleTB) Fatal(args ...any)                 { t.Fatalf("%s", fmt.Sprint(args...)) }
func (t *exampleTB) Fatalf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", args...)
	panic("example failed")
}

func (t *exampleTB) stop() {
	for _, f := range slices.Backward(t.cleanups) {
		f()
	}
}
