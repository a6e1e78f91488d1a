package timerdtest_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/timerdtest"
)

func TestMain(m *testing.M) {
	code := timerdtest.Main(m)
	os.Exit(code) //nolint:forbidigo // as the testing package has it
}

// t is the testing.TB of the examples, which have none of their own.
var t = &exampleTB{}

// exampleTB ends the test binary at a failure. Its cleanups run when the next example begins.
type exampleTB struct {
	testing.TB
	cleanups []func()
}

func (t *exampleTB) Helper()                  {}
func (t *exampleTB) Context() context.Context { return context.Background() }
func (t *exampleTB) Cleanup(f func())         { t.cleanups = append(t.cleanups, f) }
func (t *exampleTB) Error(args ...any)        { t.Fatal(args...) }
func (t *exampleTB) Errorf(format string, args ...any) {
	t.Fatal(fmt.Sprintf(format, args...))
}

func (t *exampleTB) Fatalf(format string, args ...any) {
	t.Fatal(fmt.Sprintf(format, args...))
}

func (t *exampleTB) Fatal(args ...any) {
	fmt.Fprintln(os.Stderr, args...)
	panic("example failed")
}

func (t *exampleTB) end() {
	for _, f := range slices.Backward(t.cleanups) {
		f()
	}
	t.cleanups = nil
}

// Two tests at once never share a timerd; one after the other they do, and nothing is left of the first.
func TestServersAreSharedInTurn(t *testing.T) {
	var ports []string
	for i := range 3 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			srv := timerdtest.Start(t, timerdtest.Options{Retry: "*=1s"})
			other := timerdtest.Start(t, timerdtest.Options{Retry: "*=1s"})
			if srv.Redis().Options().Addr == other.Redis().Options().Addr {
				t.Fatal("two of one test have the same Redis")
			}
			ports = append(ports, srv.Redis().Options().Addr)
			before := srv.Now()
			if n := srv.Redis().Exists(t.Context(), "shop:order:left:1").Val(); n != 0 {
				t.Error("a key is left")
			}
			for _, key := range []string{"shop:order:left:1", "shop:order:plain:1"} {
				if err := srv.Redis().Set(t.Context(), key, "", time.Hour).Err(); err != nil {
					t.Fatal(err)
				}
			}
			_, err := srv.Timers().Set(t.Context(), "shop:order:left:2", nil, client.After(100*time.Hour))
			if err != nil {
				t.Fatal(err)
			}
			if fired := srv.Advance(t, 90*time.Minute); len(fired) != 2 {
				t.Errorf("%d have fired: %v", len(fired), fired)
			}
			if other.Now().Sub(before) > time.Hour && i == 0 {
				t.Error("the other clock has moved too")
			}
		})
	}
	slices.Sort(ports)
	if n := len(slices.Compact(ports)); n > 2 {
		t.Errorf("%d servers for one test after the other", n)
	}
}

// An advance without rest names the handler that does not return, once the event has reached it: a machine that is busy
// may name the timer before.
func TestAdvanceFailsWithoutRest(t *testing.T) {
	srv := timerdtest.Start(t, timerdtest.Options{Wait: 300 * time.Millisecond})
	end := make(chan struct{})
	srv.Consume(t, "shop", func(context.Context, client.Event) error {
		<-end
		return nil
	})
	if err := srv.Redis().Set(t.Context(), "shop:order:slow:1", "", time.Minute).Err(); err != nil {
		t.Fatal(err)
	}
	to := srv.Now().Add(time.Hour)
	advance := func() (said string) {
		failed := &failing{TB: t}
		defer func() {
			if r := recover(); r != nil && r != failed.said {
				panic(r)
			}
			said = failed.said
		}()
		srv.AdvanceTo(failed, to)
		return ""
	}
	const within = time.Minute
	testenv.Eventually(t, within, func() bool {
		said := advance()
		if said == "" {
			t.Fatal("an advance has not failed")
		}
		return strings.Contains(said, "consumer timerdtest-1 has 1 in hand")
	}, "an advance names the consumer")
	close(end)
	testenv.Eventually(t, within, func() bool { return advance() == "" }, "an advance comes to rest")
}

// failing keeps what would end a test.
type failing struct {
	testing.TB
	said string
}

func (f *failing) Fatalf(format string, args ...any) {
	f.said = fmt.Sprintf(format, args...)
	panic(f.said)
}

// The clock does not leave a due time before the consumer has its event. NATS acknowledges an event before it adds it
// to the counts of consumers, one after the other.
func TestConsumersGetEventsAtTheirDueTime(t *testing.T) {
	srv := timerdtest.Start(t, timerdtest.Options{})
	const others, instants = 100, 30
	for i := range others {
		_, err := srv.JetStream().CreateConsumer(t.Context(), keys.DefaultStream, jetstream.ConsumerConfig{
			Durable: fmt.Sprintf("a%d", i), AckPolicy: jetstream.AckExplicitPolicy,
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	var handled atomic.Int32
	srv.Consume(t, "shop", func(_ context.Context, e client.Event) error {
		handled.Add(1)
		if late := srv.Now().Sub(e.Due); late > time.Minute {
			t.Errorf("%s is handled %v after its due time", e.Key, late)
		}
		return nil
	})
	var settings []client.Setting
	for i := range instants {
		settings = append(settings, client.Setting{
			Key: fmt.Sprintf("shop:order:each:%d", i), When: client.After(time.Duration(i+1) * time.Hour),
		})
	}
	if _, err := srv.Timers().SetMany(t.Context(), settings); err != nil {
		t.Fatal(err)
	}
	srv.Advance(t, (instants+1)*time.Hour)
	if n := handled.Load(); n != instants {
		t.Errorf("%d of %d are handled", n, instants)
	}
}

// An advance over a year with ten thousand timers at a thousand instants.
func TestYearOfTimersAtScale(t *testing.T) {
	srv := timerdtest.New(t)
	const instants, each = 1000, 10
	first := srv.Now().Add(time.Hour)
	var settings []client.Setting
	for i := range instants * each {
		at := first.Add(time.Duration(i/each) * 8 * time.Hour)
		settings = append(settings, client.Setting{Key: fmt.Sprintf("shop:year:timer:%d", i), When: client.At(at)})
	}
	if _, err := srv.Timers().SetMany(t.Context(), settings); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	fired := srv.Advance(t, 366*24*time.Hour)
	took := time.Since(began)
	if len(fired) != instants*each {
		t.Errorf("%d of %d have fired", len(fired), instants*each)
	}
	if !slices.IsSortedFunc(fired, func(a, b client.Event) int { return a.Due.Compare(b.Due) }) {
		t.Error("they have not fired in order")
	}
	for _, e := range fired {
		if late := e.Time.Sub(e.Due); late < 0 || late > time.Minute {
			t.Fatalf("%s is %v late", e.Key, late)
		}
	}
	t.Logf("%d timers at %d instants took %v", instants*each, instants, took)
}

// Programs that do not import the package have nothing of it, and no server of NATS.
func TestClientLinksNoServers(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "github.com/timerd-io/timerd/client").Output()
	if err != nil {
		t.Fatal(errors.Join(err, errors.New(string(out))))
	}
	for _, name := range []string{"nats-server", "timerd/timerdtest", "timerd/internal/devserver"} {
		if strings.Contains(string(out), name) {
			t.Errorf("package client depends on %s", name)
		}
	}
}
