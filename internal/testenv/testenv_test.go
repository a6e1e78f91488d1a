package testenv_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/devserver"
	"github.com/timerd-io/timerd/internal/testenv"
)

// verdict is a testing.TB that keeps the first failure instead of failing the test.
type verdict struct {
	testing.TB
	failure string
}

func (v *verdict) Fatal(args ...any) { v.Fatalf("%s", fmt.Sprint(args...)) }

func (v *verdict) Fatalf(format string, args ...any) {
	v.failure = fmt.Sprintf(format, args...)
	panic(v)
}

// verdictOf runs f and returns its failure, "" for none.
func verdictOf(t *testing.T, f func(t testing.TB)) string {
	t.Helper()
	v := &verdict{TB: t}
	func() {
		defer func() {
			if r := recover(); r != nil && r != any(v) {
				panic(r)
			}
		}()
		f(v)
	}()
	return v.failure
}

func TestEventually(t *testing.T) {
	t.Parallel()
	calls := 0
	if failure := verdictOf(t, func(t testing.TB) {
		testenv.Eventually(t, 10*time.Second, func() bool { calls++; return calls == 3 }, "the third call")
	}); failure != "" || calls != 3 {
		t.Errorf("after %d calls: %q", calls, failure)
	}
	failure := verdictOf(t, func(t testing.TB) {
		testenv.Eventually(t, 0, func() error { return errors.New("not yet") }, "the event")
	})
	for _, want := range []string{"the event", "not yet"} {
		if !strings.Contains(failure, want) {
			t.Errorf("failure %q does not say %q", failure, want)
		}
	}
}

func TestCollectorFailures(t *testing.T) {
	t.Parallel()
	s := testenv.NATS(t)
	js := s.JetStream()
	makeStream(t, js)
	collect := func(tb testing.TB) *testenv.Collector { return testenv.Collect(tb, js, "S") }
	publish(t, js, "s.a", "one")
	publish(t, js, "s.b", "two")
	collect(t).Wait(2, time.Minute)

	for _, test := range []struct {
		name string
		run  func(*testenv.Collector)
		want []string
	}{
		{"too few", func(c *testenv.Collector) {
			c.Wait(2, time.Minute)
			c.Wait(3, 100*time.Millisecond)
		}, []string{"2 messages, want 3", "s.b", `"two"`}},
		{"too many", func(c *testenv.Collector) {
			c.WaitFunc(time.Minute, func(all []testenv.Message) error {
				if len(all) < 2 {
					return errors.New("not all there")
				}
				return nil
			})
			c.Wait(1, 0)
		}, []string{"2 messages, want 1", `"two"`}},
		{"more later", func(c *testenv.Collector) {
			c.Wait(2, time.Minute)
			publish(t, js, "s.c", "three")
			c.Stays(2, 10*time.Second)
		}, []string{"3 messages, want 2", `"three"`}},
	} {
		failure := verdictOf(t, func(tb testing.TB) { test.run(collect(tb)) })
		for _, want := range test.want {
			if !strings.Contains(failure, want) {
				t.Errorf("%s: failure %q does not say %q", test.name, failure, want)
			}
		}
	}
}

func TestMissingServerIsAFailure(t *testing.T) {
	t.Setenv(devserver.BinaryEnv, "/nonexistent/redis-server")
	failure := verdictOf(t, func(tb testing.TB) { testenv.Redis(tb) })
	if !strings.Contains(failure, devserver.BinaryEnv) {
		t.Errorf("failure %q does not name %s", failure, devserver.BinaryEnv)
	}
}
