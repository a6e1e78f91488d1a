package client_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/internal/connect"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/internal/testenv/timerdtest"
)

const aTrace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

// traces is a Propagator whose trace is a value of the context.
type traces struct{}

type traceKey struct{}

func (traces) Inject(ctx context.Context, carrier map[string]string) {
	if parent, ok := ctx.Value(traceKey{}).(string); ok {
		carrier["traceparent"] = parent
	}
}

func (traces) Extract(ctx context.Context, carrier map[string]string) context.Context {
	return context.WithValue(ctx, traceKey{}, fmt.Sprint(carrier))
}

// The trace in which a timer is set is in the context of its handler, at each attempt.
func TestTraceReachesTheHandler(t *testing.T) {
	t.Parallel()
	natsServer := testenv.NATS(t)
	rdb := testenv.Redis(t).Client()
	timerdtest.Run(t, rdb, natsServer.Conn(connect.NATSOptions()...))
	timers := client.New(rdb)
	timers.Propagator = traces{}
	traced := context.WithValue(t.Context(), traceKey{}, aTrace)

	set := func(ctx context.Context, key, payload string) {
		t.Helper()
		if _, err := timers.Set(ctx, key, []byte(payload), client.After(5*time.Second)); err != nil {
			t.Fatal(err)
		}
	}
	set(traced, "shop:order:traced:1", "p")
	set(t.Context(), "shop:order:untraced:1", "p")
	set(t.Context(), "shop:order:payload:1", `{"traceparent":"`+aTrace+`","tracestate":"a=b"}`)
	set(context.WithValue(t.Context(), traceKey{}, "malformed"), "shop:order:malformed:1", "p")
	many := []client.Setting{{Key: "shop:order:many:1", When: client.After(5 * time.Second)},
		{Key: "shop:order:many:2", When: client.After(5 * time.Second)}}
	if _, err := timers.SetMany(traced, many); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{"shop:order:traced:1": aTrace, "shop:order:many:2": aTrace,
		"shop:order:untraced:1": "", "shop:order:malformed:1": ""} {
		if timer, found, err := timers.Get(t.Context(), key); err != nil || !found || timer.TraceParent != want {
			t.Errorf("Get of %s = %+v, %v, %v; want the trace %q", key, timer, found, err, want)
		}
	}
	got := make(chan string, 100)
	c := client.NewConsumer(natsServer.JetStream())
	c.Propagator, c.Logger = traces{}, slog.New(slog.DiscardHandler)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- c.Consume(ctx, "shop", func(ctx context.Context, e client.Event) error {
			got <- fmt.Sprint(e.Key.Type, " ", ctx.Value(traceKey{}))
			return errors.New("again") // there is nobody to do so
		})
	}()
	seen := map[string]int{}
	for range 6 {
		seen[take(t, got, "event")]++
	}
	carried := "map[traceparent:" + aTrace + "]"
	for what, n := range map[string]int{
		"traced " + carried: 1, "many " + carried: 2, "untraced <nil>": 1, "malformed <nil>": 1,
		"payload map[traceparent:" + aTrace + " tracestate:a=b]": 1,
	} {
		if seen[what] != n {
			t.Errorf("handlers saw %v, want %d of %q", seen, n, what)
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// Without a propagator, and without a trace, the call is the same as before.
func TestSetWithoutATraceSendsNoMore(t *testing.T) {
	t.Parallel()
	rdb := timerdtest.Redis(t)
	timers := client.New(rdb)
	sent := func() int64 {
		t.Helper()
		before := bytesIn(t, rdb)
		if _, err := timers.Set(t.Context(), "shop:order:timeout:42", []byte("p"),
			client.After(time.Minute)); err != nil {
			t.Fatal(err)
		}
		return bytesIn(t, rdb) - before
	}
	sent()
	plain := sent()
	timers.Propagator = traces{}
	if got := sent(); got != plain {
		t.Errorf("with a propagator but no trace a call has %d bytes, want %d", got, plain)
	}
	if record := rdb.HGet(t.Context(), "timerd:{t}:data", "shop:order:timeout:42").Val(); record != ":p" {
		t.Errorf("the record is %q", record)
	}
}

// bytesIn returns how many bytes a Redis has read.
func bytesIn(t testing.TB, rdb *redis.Client) (n int64) {
	t.Helper()
	info, err := rdb.Info(t.Context(), "stats").Result()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(info) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), "total_net_input_bytes:"); ok {
			n, _ = strconv.ParseInt(value, 10, 64)
		}
	}
	return n
}
