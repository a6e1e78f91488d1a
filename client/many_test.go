package client_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/internal/testenv/timerdtest"
	"github.com/timerd-io/timerd/schedule"
)

func TestCancelMany(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	rdb := timerdtest.Redis(t)
	timers := client.New(rdb)

	const n = 1300 // more than fit into two pipelines
	names := make([]string, n)
	settings := make([]client.Setting, n)
	for i := range n {
		names[i] = fmt.Sprintf("shop:order:timeout:%d", i)
		settings[i] = client.Setting{Key: names[i], When: client.After(time.Hour)}
	}
	if _, err := timers.SetMany(ctx, settings); err != nil {
		t.Fatal(err)
	}
	// A plain timer is cancelled too, and a key without a TTL is none.
	if err := rdb.Set(ctx, "shop:order:timeout:plain", "p", time.Hour).Err(); err != nil {
		t.Fatal(err)
	}
	if err := rdb.Set(ctx, "shop:order:timeout:no", "p", 0).Err(); err != nil {
		t.Fatal(err)
	}
	results, err := timers.CancelMany(ctx, slices.Concat(names,
		[]string{"shop:order:timeout:plain", "shop:order:timeout:no"}))
	if err != nil || len(results) != n+2 {
		t.Fatalf("CancelMany = %d results, %v", len(results), err)
	}
	for i, r := range results {
		want := client.Cancelled
		if i == n+1 {
			want = client.Unknown
		}
		if r.Err != nil || r.Outcome != want {
			t.Fatalf("timer %d: %+v, want %s", i, r, want)
		}
	}
	if left := rdb.Keys(ctx, "shop:*").Val(); len(left) != 1 {
		t.Errorf("keys that are left: %q", left)
	}

	// Each for itself: the same one twice, and one that is none among them.
	if _, err := timers.Set(ctx, names[0], nil, client.After(time.Hour)); err != nil {
		t.Fatal(err)
	}
	results, err = timers.CancelMany(ctx, []string{names[0], "not a timer", names[0]})
	if !errors.Is(err, client.ErrInvalid) || !strings.Contains(err.Error(), "1 of 3") ||
		!strings.Contains(err.Error(), `"not a timer"`) {
		t.Errorf("CancelMany with a bad key: %v, want the count and the fault", err)
	}
	for i, want := range []client.Outcome{client.Cancelled, "", client.Unknown} {
		if results[i].Outcome != want || (want == "") != errors.Is(results[i].Err, client.ErrInvalid) {
			t.Errorf("result %d: %+v, want %q", i, results[i], want)
		}
	}
	if results, err := timers.CancelMany(ctx, nil); err != nil || len(results) != 0 {
		t.Errorf("CancelMany of nothing = %v, %v", results, err)
	}
}

// CancelDue cancels the timers found before, and not timers set or moved since.
func TestCancelDue(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	rdb := timerdtest.Redis(t)
	timers := client.New(rdb)
	var found []client.Due
	for i := range 4 {
		key := fmt.Sprint("a:b:c:", i)
		due, err := timers.Set(ctx, key, []byte("p"), client.After(time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, client.Due{Key: key, Due: due})
	}
	if _, err := timers.Set(ctx, found[1].Key, []byte("again"), client.After(2*time.Hour)); err != nil {
		t.Fatal(err)
	}
	if _, err := timers.Set(ctx, found[2].Key, []byte("again"), client.After(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if err := rdb.Expire(ctx, found[3].Key, 3*time.Hour).Err(); err != nil {
		t.Fatal(err)
	}
	for _, want := range [][]client.Outcome{
		{client.Cancelled, client.Unknown, client.Cancelled, client.Unknown},
		{client.Unknown, client.Unknown, client.Unknown, client.Unknown},
	} {
		results, err := timers.CancelDue(ctx, found)
		if err != nil {
			t.Fatal(err)
		}
		for i, r := range results {
			if r.Err != nil || r.Outcome != want[i] {
				t.Errorf("%s: %+v, want %s", found[i].Key, r, want[i])
			}
		}
	}
	for i, payload := range map[int]string{1: "again", 3: "p"} {
		if timer, there, err := timers.Get(ctx, found[i].Key); err != nil || !there ||
			string(timer.Payload) != payload {
			t.Errorf("%s: %+v, %v, %v; want it to stay", found[i].Key, timer, there, err)
		}
	}
}

// A call whose timers are too many for one is repeated as it was.
func TestCancelDueOfManyOwedTimers(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	rdb := timerdtest.Redis(t)
	timers := client.New(rdb)
	const n, key = 150, "a:b:c:d"
	var due time.Time
	for i := range n + 1 {
		at, err := timers.Set(ctx, key, nil, client.After(time.Millisecond))
		if err != nil {
			t.Fatal(err)
		}
		if i < n {
			due = at
		}
		testenv.Eventually(t, time.Minute, func() bool { return rdb.Time(ctx).Val().After(at.Add(time.Millisecond)) },
			"the clock to pass")
	}
	results, err := timers.CancelDue(ctx, []client.Due{{Key: key, Due: due}})
	if err != nil || results[0].Outcome != client.Cancelled {
		t.Fatalf("%+v, %v", results, err)
	}
	if timer, there, err := timers.Get(ctx, key); err != nil || !there || timer.State != client.Owed ||
		!timer.Due.After(due) {
		t.Errorf("%+v, %v, %v; want the last one to stay", timer, there, err)
	}
}

func TestCancelManyInTrouble(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	rdb := server.Client(func(o *redis.Options) { o.ReadTimeout, o.MaxRetries = time.Second, -1 })
	timers := client.New(rdb)
	names := []string{"a:b:c:d", "a:b:c:e"}
	if results, err := timers.CancelMany(t.Context(), names); !errors.Is(err, client.ErrNoLibrary) ||
		!errors.Is(results[1].Err, client.ErrNoLibrary) {
		t.Errorf("without the library: %v, %v", results, err)
	}
	if _, err := schedule.New(rdb, schedule.DefaultMaxPayload).Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if results, err := timers.CancelMany(ended, names); !errors.Is(err, context.Canceled) ||
		!errors.Is(results[1].Err, context.Canceled) {
		t.Errorf("with an ended context: %v, %v", results, err)
	}
	server.Pause()
	var timeout net.Error
	if results, err := timers.CancelMany(t.Context(), names); !errors.As(err, &timeout) || !timeout.Timeout() ||
		results[0].Err == nil {
		t.Errorf("on a server that does not answer: %v, %v", results, err)
	}
	server.Resume()
}

func TestCancelManyOnACluster(t *testing.T) {
	t.Parallel()
	rdb := testenv.Cluster(t, 3, false).Client()
	if _, err := schedule.New(rdb, schedule.DefaultMaxPayload).Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	timers := client.New(rdb)
	var names []string
	var settings []client.Setting
	for i := range 100 {
		names = append(names, fmt.Sprintf("a:b:c:%d", i))
		settings = append(settings, client.Setting{Key: names[i], When: client.After(time.Hour)})
	}
	if _, err := timers.SetMany(t.Context(), settings); err != nil {
		t.Fatal(err)
	}
	for _, want := range []client.Outcome{client.Cancelled, client.Unknown} {
		results, err := timers.CancelMany(t.Context(), names)
		if err != nil {
			t.Fatal(err)
		}
		for i, r := range results {
			if r.Outcome != want {
				t.Errorf("%s: %+v, want %s", names[i], r, want)
			}
		}
	}
}
