package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/internal/connect"
	"github.com/timerd-io/timerd/internal/devserver"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/internal/testenv/timerdtest"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// A set timer is due after its delay by the server's clock, can be read, moved and cancelled.
func TestSetIsScheduledAndCanBeRead(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	rdb := timerdtest.Redis(t)
	timers := client.New(rdb)
	const key = "shop:order:timeout:42"

	before := timerdtest.Now(t, rdb)
	due, err := timers.Set(ctx, key, []byte(`{"total":99}`), client.After(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	after := timerdtest.Now(t, rdb)
	if early := before.Truncate(time.Millisecond).Add(time.Minute); due.Before(early) ||
		due.After(after.Add(time.Minute)) {
		t.Errorf("due %v, want a minute after the server's %v to %v", due, before, after)
	}
	if at := rdb.PExpireTime(ctx, key).Val(); at != time.Duration(due.UnixMilli())*time.Millisecond {
		t.Errorf("the key expires at %v, want %d ms", at, due.UnixMilli())
	}
	timer, found, err := timers.Get(ctx, key)
	if err != nil || !found {
		t.Fatalf("Get = %v, %v", found, err)
	}
	if !timer.Due.Equal(due) || timer.Attempt != 1 || string(timer.Payload) != `{"total":99}` {
		t.Errorf("Get = %+v, want due %v, attempt 1 and the payload", timer, due)
	}

	at := due.Add(time.Hour).Add(time.Nanosecond)
	again, err := timers.Set(ctx, key, nil, client.At(at), client.Attempt(3))
	if err != nil {
		t.Fatal(err)
	}
	if want := due.Add(time.Hour + time.Millisecond); !again.Equal(want) {
		t.Errorf("At(%v) is due at %v, want %v: rounded up", at, again, want)
	}
	timer, _, err = timers.Get(ctx, key)
	if err != nil || timer.Attempt != 3 || timer.Payload == nil || len(timer.Payload) != 0 {
		t.Errorf("Get = %+v, %v; want attempt 3 and an empty payload", timer, err)
	}
	if past, err := timers.Set(ctx, key, nil, client.At(before)); err != nil ||
		past.Before(after.Truncate(time.Millisecond)) || past.After(due) {
		t.Errorf("At(%v) is due at %v, %v; want it due now", before, past, err)
	}
	// What any other client set is a timer too.
	if err := rdb.Set(ctx, "shop:order:timeout:43", "plain", time.Minute).Err(); err != nil {
		t.Fatal(err)
	}
	if timer, found, err := timers.Get(ctx, "shop:order:timeout:43"); err != nil || !found ||
		string(timer.Payload) != "plain" {
		t.Errorf("Get of a plain timer = %+v, %v, %v", timer, found, err)
	}
	if err := rdb.RPush(ctx, "shop:order:timeout:44", "a").Err(); err != nil {
		t.Fatal(err)
	}
	if err := rdb.Expire(ctx, "shop:order:timeout:44", time.Minute).Err(); err != nil {
		t.Fatal(err)
	}
	if timer, found, err := timers.Get(ctx, "shop:order:timeout:44"); err != nil || !found || timer.Payload != nil {
		t.Errorf("Get of a list = %+v, %v, %v; want no payload", timer, found, err)
	}
}

func TestSetWithALimit(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	rdb := timerdtest.Redis(t)
	timers := client.New(rdb)
	var settings []client.Setting
	for i, opts := range [][]client.SetOption{
		{client.Late(5 * time.Minute)},
		{client.NX(), client.DropLate(time.Millisecond + 1), client.Attempt(3)},
		{client.Late(0)},
		nil,
		{client.Late(-time.Second)},
		{client.DropLate(11 * 365 * 24 * time.Hour)},
	} {
		settings = append(settings, client.Setting{Key: fmt.Sprint("a:b:c:", i), Payload: []byte("p"),
			When: client.After(time.Hour), Options: opts})
	}
	results, err := timers.SetMany(ctx, settings)
	if !errors.Is(err, client.ErrInvalid) || !errors.Is(results[4].Err, client.ErrInvalid) ||
		!errors.Is(results[5].Err, client.ErrInvalid) {
		t.Errorf("limits below 0 and over 10 years: %v, %v", err, results[4:])
	}
	for i, want := range []time.Duration{5 * time.Minute, 2 * time.Millisecond, 0, 0} {
		timer, found, err := timers.Get(ctx, settings[i].Key)
		if err != nil || !found || timer.Late != want || string(timer.Payload) != "p" {
			t.Errorf("%s: %+v, %v, %v; want the limit %v", settings[i].Key, timer, found, err, want)
		}
	}
}

func TestSetOnlyIf(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	rdb := timerdtest.Redis(t)
	timers := client.New(rdb)
	const key = "shop:order:timeout:42"

	if _, err := timers.Set(ctx, key, []byte("a"), client.After(time.Minute), client.XX()); !errors.Is(err,
		client.ErrNotSet) {
		t.Errorf("XX of an unknown timer: %v, want ErrNotSet", err)
	}
	first, err := timers.Set(ctx, key, []byte("b"), client.After(time.Minute), client.NX())
	if err != nil {
		t.Fatal(err)
	}
	if due, err := timers.Set(ctx, key, []byte("c"), client.After(time.Hour), client.NX()); !errors.Is(err,
		client.ErrNotSet) || !due.IsZero() {
		t.Errorf("NX of a pending timer: %v, %v; want ErrNotSet", due, err)
	}
	if timer, _, err := timers.Get(ctx, key); err != nil || !timer.Due.Equal(first) || string(timer.Payload) != "b" {
		t.Errorf("after a refused NX: %+v, %v; want the first timer", timer, err)
	}
	if _, err := timers.Set(ctx, key, []byte("d"), client.After(time.Hour), client.XX(),
		client.Attempt(7)); err != nil {
		t.Fatal(err)
	}
	if timer, _, err := timers.Get(ctx, key); err != nil || timer.Attempt != 7 || string(timer.Payload) != "d" {
		t.Errorf("after XX with an attempt: %+v, %v", timer, err)
	}
}

func TestRefusedCallsNameTheFaultAndChangeNothing(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	rdb := timerdtest.Redis(t)
	timers := client.New(rdb)
	const key = "shop:order:timeout:42"
	minute := client.After(time.Minute)
	set := func(key string, payload []byte, when client.When, opts ...client.SetOption) error {
		_, err := timers.Set(ctx, key, payload, when, opts...)
		return err
	}
	_, _, getErr := timers.Get(ctx, "three:part:key")
	_, cancelErr := timers.Cancel(ctx, "")
	for _, c := range []struct {
		name, want string
		err        error
	}{
		{"three parts", "app:module:type:id", set("shop:order:42", nil, minute)},
		{"an empty part", "app:module:type:id", set("shop::timeout:42", nil, minute)},
		{"too long a key", "1024", set(key+strings.Repeat("x", keys.MaxKeyBytes), nil, minute)},
		{"too long a part", "128", set(strings.Repeat("a", keys.MaxPartBytes+1)+":m:t:i", nil, minute)},
		{"no delay", "greater than 0", set(key, nil, client.After(0))},
		{"a negative delay", "greater than 0", set(key, nil, client.After(-time.Second))},
		{"the zero time", "no time given", set(key, nil, client.At(time.Time{}))},
		{"over 10 years", "10 years", set(key, nil, client.At(time.Now().AddDate(10, 1, 0)))},
		{"no time", "After or At", set(key, nil, client.When{})},
		{"too large a payload", "262144", set(key, make([]byte, schedule.DefaultMaxPayload+1), minute)},
		{"attempt 0", "ATTEMPT", set(key, nil, minute, client.Attempt(0))},
		{"NX and XX", "once", set(key, nil, minute, client.NX(), client.XX())},
		{"get", "app:module:type:id", getErr},
		{"cancel", "app:module:type:id", cancelErr},
	} {
		if !errors.Is(c.err, client.ErrInvalid) || !strings.Contains(fmt.Sprint(c.err), c.want) {
			t.Errorf("%s: %v, want an ErrInvalid that says %q", c.name, c.err, c.want)
		}
	}
	if left := rdb.Keys(ctx, "*").Val(); !slices.Equal(left, []string{keys.Single.Database()}) {
		t.Errorf("keys after refused calls: %q", left)
	}
}

func TestCancel(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	rdb := timerdtest.Redis(t)
	timers := client.New(rdb)
	const key = "shop:order:timeout:42"
	cancel := func(want client.Outcome) {
		t.Helper()
		if got, err := timers.Cancel(ctx, key); err != nil || got != want {
			t.Errorf("Cancel = %q, %v; want %q", got, err, want)
		}
	}

	cancel(client.Unknown)
	if _, err := timers.Set(ctx, key, nil, client.After(time.Minute)); err != nil {
		t.Fatal(err)
	}
	cancel(client.Cancelled)
	cancel(client.Unknown)
	if _, found, err := timers.Get(ctx, key); err != nil || found {
		t.Errorf("Get of a cancelled timer = %v, %v", found, err)
	}
	if n := rdb.Exists(ctx, key).Val(); n != 0 {
		t.Error("the key of a cancelled timer is still there")
	}

	server := testenv.NATS(t)
	timerdtest.Run(t, rdb, server.Conn(connect.NATSOptions()...))
	events := testenv.Collect(t, server.JetStream(), client.DefaultStream)
	if _, err := timers.Set(ctx, key, nil, client.After(time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	events.Wait(1, patience)
	cancel(client.Fired)
}

func TestMissingLibrary(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	for name, opts := range map[string][]devserver.RedisOption{
		"never loaded": nil,
		"a server without": {devserver.Directive("rename-command", "FCALL", ""),
			devserver.Directive("rename-command", "FCALL_RO", "")},
	} {
		t.Run(name, func(t *testing.T) {
			timers := client.New(testenv.Redis(t, opts...).Client())
			_, setErr := timers.Set(ctx, "a:b:c:d", nil, client.After(time.Minute))
			_, cancelErr := timers.Cancel(ctx, "a:b:c:d")
			_, _, getErr := timers.Get(ctx, "a:b:c:d")
			_, manyErr := timers.SetMany(ctx, []client.Setting{{Key: "a:b:c:d", When: client.After(time.Minute)}})
			for call, err := range map[string]error{"Set": setErr, "Cancel": cancelErr, "Get": getErr,
				"SetMany": manyErr} {
				if !errors.Is(err, client.ErrNoLibrary) || !strings.Contains(err.Error(), "timerd doctor") {
					t.Errorf("%s: %v, want ErrNoLibrary and what to do", call, err)
				}
			}
		})
	}
}

func TestSetMany(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	rdb := timerdtest.Redis(t)
	timers := client.New(rdb)

	const n = 1300
	settings := make([]client.Setting, n)
	for i := range settings {
		settings[i] = client.Setting{
			Key:     fmt.Sprintf("shop:order:timeout:%d", i),
			Payload: fmt.Appendf(nil, "payload %d", i),
			When:    client.After(time.Minute + time.Duration(i)*time.Second),
		}
	}
	results, err := timers.SetMany(ctx, settings)
	if err != nil || len(results) != n {
		t.Fatalf("SetMany = %d results, %v", len(results), err)
	}
	for i, r := range results {
		timer, found, err := timers.Get(ctx, settings[i].Key)
		if r.Err != nil || err != nil || !found || !timer.Due.Equal(r.Due) ||
			!bytes.Equal(timer.Payload, settings[i].Payload) {
			t.Fatalf("timer %d: result %+v, found %+v %v %v", i, r, timer, found, err)
		}
	}

	settings = []client.Setting{
		{Key: "shop:order:timeout:0", When: client.After(time.Hour), Options: []client.SetOption{client.NX()}},
		{Key: "not a timer", When: client.After(time.Hour)},
		{Key: "shop:order:timeout:new", When: client.After(time.Hour),
			Options: []client.SetOption{client.NX(), client.Attempt(4)}},
		{Key: "shop:order:timeout:1"},
	}
	results, err = timers.SetMany(ctx, settings)
	if !errors.Is(err, client.ErrInvalid) || !strings.Contains(err.Error(), `2 of 4`) ||
		!strings.Contains(err.Error(), `"not a timer"`) {
		t.Errorf("SetMany with bad settings: %v, want the count and the first fault", err)
	}
	for i, want := range []error{client.ErrNotSet, client.ErrInvalid, nil, client.ErrInvalid} {
		if !errors.Is(results[i].Err, want) {
			t.Errorf("result %d: %v, want %v", i, results[i].Err, want)
		}
	}
	if timer, found, err := timers.Get(ctx, "shop:order:timeout:new"); err != nil || !found || timer.Attempt != 4 {
		t.Errorf("the good one among bad ones: %+v, %v, %v", timer, found, err)
	}
	if results, err := timers.SetMany(ctx, nil); err != nil || len(results) != 0 {
		t.Errorf("SetMany of nothing = %v, %v", results, err)
	}
}

func TestConnectionTroubleIsAnError(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	rdb := server.Client(func(o *redis.Options) { o.ReadTimeout, o.MaxRetries = time.Second, -1 })
	if _, err := schedule.New(rdb, schedule.DefaultMaxPayload).Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	timers := client.New(rdb)
	setting := client.Setting{Key: "a:b:c:d", When: client.After(time.Minute)}
	if _, err := timers.SetMany(t.Context(), []client.Setting{setting}); err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := timers.Set(ended, "a:b:c:d", nil, client.After(time.Minute)); !errors.Is(err, context.Canceled) {
		t.Errorf("Set with an ended context: %v", err)
	}
	if results, err := timers.SetMany(ended, []client.Setting{setting}); !errors.Is(err, context.Canceled) ||
		!errors.Is(results[0].Err, context.Canceled) {
		t.Errorf("SetMany with an ended context: %v, %v", results, err)
	}

	server.Pause()
	var timeout net.Error
	if _, err := timers.Set(t.Context(), "a:b:c:d", nil, client.After(time.Minute)); !errors.As(err, &timeout) ||
		!timeout.Timeout() {
		t.Errorf("Set on a server that does not answer: %v, want a timeout", err)
	}
	if results, err := timers.SetMany(t.Context(), []client.Setting{setting}); !errors.As(err, &timeout) ||
		results[0].Err == nil {
		t.Errorf("SetMany on a server that does not answer: %v, %v", results, err)
	}
	if _, _, err := timers.Get(t.Context(), "a:b:c:d"); !errors.As(err, &timeout) {
		t.Errorf("Get on a server that does not answer: %v", err)
	}
	if _, err := timers.Cancel(t.Context(), "a:b:c:d"); !errors.As(err, &timeout) {
		t.Errorf("Cancel on a server that does not answer: %v", err)
	}
	server.Resume()
	testenv.Eventually(t, patience, func() error {
		_, found, err := timers.Get(t.Context(), "a:b:c:d")
		if err == nil && !found {
			err = errors.New("no timer")
		}
		return err
	}, "the timer, once the server answers again")
}

// Any key and any payload come back byte for byte.
func TestRandomKeysAndPayloads(t *testing.T) {
	t.Parallel()
	rdb := timerdtest.Redis(t)
	timers := client.New(rdb)
	part := rapid.Custom(func(t *rapid.T) string {
		b := rapid.SliceOfN(rapid.Byte(), 1, keys.MaxPartBytes).Draw(t, "part")
		for i := range b {
			if b[i] == ':' {
				b[i] = '.'
			}
		}
		return string(b)
	})
	rapid.Check(t, func(rt *rapid.T) {
		key := keys.Key{
			App: part.Draw(rt, "app"), Module: part.Draw(rt, "module"), Type: part.Draw(rt, "type"),
			ID: string(rapid.SliceOfN(rapid.Byte(), 1, 600).Draw(rt, "id")),
		}.String()
		payload := rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(rt, "payload")
		attempt := rapid.IntRange(1, 1<<31-1).Draw(rt, "attempt")
		due, err := timers.Set(t.Context(), key, payload, client.After(time.Hour), client.Attempt(attempt))
		if err != nil {
			rt.Fatal(err)
		}
		timer, found, err := timers.Get(t.Context(), key)
		if err != nil || !found || !timer.Due.Equal(due) || timer.Attempt != attempt ||
			!bytes.Equal(timer.Payload, payload) {
			rt.Fatalf("Get(%q) = %+v, %v, %v; want due %v, attempt %d, payload %q", key, timer, found, err, due,
				attempt, payload)
		}
		if outcome, err := timers.Cancel(t.Context(), key); err != nil || outcome != client.Cancelled {
			rt.Fatalf("Cancel(%q) = %v, %v", key, outcome, err)
		}
	})
}
