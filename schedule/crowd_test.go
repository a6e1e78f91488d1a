package schedule_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// largePayload is as large as payloads of newLargeIndex may be.
const largePayload = schedule.DefaultMaxPayload

// newLargeIndex is newIndex with the payload limit that timerd has by default.
func newLargeIndex(t testing.TB) *index {
	t.Helper()
	rdb := servers.client(t)
	return newIndexFor(t, rdb, rdb, largePayload)
}

// A hash is judged by its size before it is read: by the number of its fields, and by the bytes of names and values.
func TestLargeHashesAreNotRead(t *testing.T) {
	t.Parallel()
	x := newLargeIndex(t)
	fields := func(n int, value string) []any {
		var args []any
		for i := range n {
			args = append(args, fmt.Sprint(i), value)
		}
		return args
	}
	const ok, large = schedule.PayloadPresent, schedule.PayloadTooLarge
	want := map[string]schedule.Status{}
	for name, c := range map[string]struct {
		args []any
		want schedule.Status
	}{
		"fields 1000":   {fields(1000, "v"), ok},
		"fields 1001":   {fields(1001, "v"), large},
		"fields 13000":  {fields(13000, "v"), large},
		"values":        {fields(1000, strings.Repeat("v", 250)), ok},
		"values beyond": {fields(1000, strings.Repeat("v", 300)), large},
		"name":          {[]any{strings.Repeat("n", largePayload-100), "v"}, ok},
		"name beyond":   {[]any{strings.Repeat("n", 3<<20), "v"}, large},
		"escapes":       {[]any{"f", strings.Repeat("\x01", largePayload/6-100)}, ok},
		"escaped":       {[]any{"f", strings.Repeat("\x01", largePayload/6)}, large},
	} {
		key := "a:b:c:" + name
		want[key] = c.want
		x.do(append([]any{"HSET", key}, c.args...)...)
		x.do("PEXPIRE", key, 3*brief)
		x.observe(touched(key))
	}
	for key := range want {
		x.awaitExpiry(key)
	}
	got := map[string]schedule.Status{}
	for range want {
		firings, _ := x.claimOnce()
		for _, f := range firings {
			got[f.Key.String()] = f.Status
		}
	}
	for key, status := range want {
		if s, ok := got[key]; !ok || s != status {
			t.Errorf("%s: fired %t, status %d; want %d", key, ok, s, status)
		}
	}
}

// However large the payloads, a step handles as many as it can without holding Redis up, and all fire.
func TestLargePayloadsAreClaimedFewAtATime(t *testing.T) {
	t.Parallel()
	const n = 40
	most := schedule.MaxClaimBytes/largePayload + 1
	for name, owed := range map[string]bool{"due": false, "owed by their events": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := newLargeIndex(t)
			var hints []schedule.Hint
			for i := range n {
				key := fmt.Sprintf("a:b:c:%d", i)
				x.do("FCALL", "timer_set", 1, key, strings.Repeat("x", largePayload), "PX", 20)
				x.awaitExpiry(key)
				hints = append(hints, expired(key))
			}
			if owed {
				if seen := x.observe(hints...); seen.Owed != n {
					t.Fatalf("%+v, want %d owed", seen, n)
				}
			}
			fired := 0
			for fired < n {
				firings, _ := x.claimOnce()
				if len(firings) == 0 || len(firings) > most {
					t.Fatalf("claimed %d of %d bytes each, want 1 to %d", len(firings), largePayload, most)
				}
				if err := x.Settle(t.Context(), schedule.Outcomes(schedule.OutcomeFired, firings...)); err != nil {
					t.Fatal(err)
				}
				fired += len(firings)
			}
			x.claims()
			x.isEmpty()
		})
	}
}

// Contested timers with large payloads are decided a few at a time: each decision reads a payload.
func TestLargeContested(t *testing.T) {
	t.Parallel()
	const n, most = 10, 3
	x := newLargeIndex(t)
	for i := range n {
		key := fmt.Sprint("a:b:c:", i)
		x.do("SET", key, strings.Repeat("x", largePayload), "PX", 5000)
		x.observe(touched(key))
	}
	for i := range n {
		key := fmt.Sprint("a:b:c:", i)
		x.do("PERSIST", key)
	}
	x.awaitExpiry(fmt.Sprint("a:b:c:", n-1))
	contested := func() (left int) {
		for i := range n {
			if x.do("ZSCORE", keys.Single.Due(), fmt.Sprint(":?:a:b:c:", i)) != nil {
				left++
			}
		}
		return left
	}
	for range n {
		x.claims()
	}
	if left := contested(); left != n {
		t.Fatalf("%d are contested, want %d", left, n)
	}
	for i := range n {
		x.do("ZADD", keys.Single.Due(), 1, fmt.Sprint(":?:a:b:c:", i)) // their time is over
	}
	for left := n; left > 0; {
		x.claimOnce()
		now := contested()
		if now == left || left-now > most {
			t.Fatalf("one claim decided %d of them, want 1 to %d", left-now, most)
		}
		left = now
	}
}

// Retries beside one key's newer timer are many and fire once each; too many are refused, and change nothing.
func TestManyRetriesBesideOneKey(t *testing.T) {
	t.Parallel()
	const most = 150
	x := newIndex(t)
	x.do("FCALL", "timer_set", 1, k, "newer", "PX", 600_000)
	key, err := keys.Parse(k)
	if err != nil {
		t.Fatal(err)
	}
	due := schedule.Millis(x.redisNow() + 600_000)
	retry := func(i int) error {
		_, _, err := x.Retry(t.Context(),
			schedule.Retry{EventID: fmt.Sprint(i), Key: key, Due: due, Attempt: 2, Payload: []byte("p")})
		return err
	}
	for i := range most {
		if err := retry(i); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := retry(most); !errors.Is(err, schedule.ErrTooManyRetries) {
			t.Fatalf("one more: %v", err)
		}
	}
	dues := x.rdb.ZRangeWithScores(t.Context(), keys.Single.Due(), 0, -1).Val()
	for _, z := range dues {
		if member, _ := z.Member.(string); member != k {
			// A free ms is found by jumps at random: one run in a hundred has a timer further off than 16*most, one in
			// millions this far.
			if off := int64(z.Score) - int64(due); off < 0 || off > 64*most {
				t.Fatalf("%s is due %d ms off", member, off)
			}
			x.do("ZADD", keys.Single.Due(), "XX", 1, member)
		}
	}
	refs := map[string]bool{}
	for len(refs) < most {
		firings := x.claimFor(lease).Firings // long before they are due
		if len(firings) == 0 {
			t.Fatalf("%d fired, want %d", len(refs), most)
		}
		for _, f := range firings {
			if refs[f.Ref] || f.Attempt != 2 {
				t.Fatalf("%+v", f)
			}
			refs[f.Ref] = true
		}
		if err := x.Settle(t.Context(), schedule.Outcomes(schedule.OutcomeFired, firings...)); err != nil {
			t.Fatal(err)
		}
	}
	x.claims()
	if err := retry(most); err != nil { // there is room again
		t.Error(err)
	}
	if got := x.do("FCALL", "timer_cancel", 1, k); got != "cancelled" {
		t.Errorf("timer_cancel: %v", got)
	}
	x.isEmpty()
	if n := x.do("EXISTS", keys.Single.Prefix()+"beside"); n != int64(0) {
		t.Error("names are left behind")
	}
}

// Retries that are due already, all at the same time, get ids of their own.
func TestManyRetriesDueAtOnce(t *testing.T) {
	t.Parallel()
	const n = 2000
	x := newIndex(t)
	key, err := keys.Parse(k)
	if err != nil {
		t.Fatal(err)
	}
	due := schedule.Millis(x.redisNow() - time.Minute.Milliseconds())
	ids := map[schedule.Millis]bool{}
	for i := range n {
		at, ok, err := x.Retry(t.Context(),
			schedule.Retry{EventID: fmt.Sprint(i), Key: key, Due: due, Attempt: 2, Payload: []byte("p")})
		if err != nil || !ok || ids[at] || at > due {
			t.Fatalf("retry %d: due %d, %t, %v", i, at, ok, err)
		}
		ids[at] = true
	}
	if _, firing := x.count(); firing != n {
		t.Errorf("%d firing, want %d", firing, n)
	}
}

// count returns the numbers of timers that are pending and firing.
func (x *index) count() (pending, firing int64) {
	x.t.Helper()
	found, err := x.ScanDue(x.t.Context(), time.Hour, lease)
	if err != nil {
		x.t.Fatal(err)
	}
	return found.Pending, found.Firing
}

// A hash of many fields becomes a JSON object of the same strings, whatever they are, and the same text each time.
func TestHashOfManyFields(t *testing.T) {
	t.Parallel()
	x := newLargeIndex(t)
	want := map[string]string{"": "no name", "1": "a number", `"},{"`: `\"/`, "é\n\x00": "", "attempt": "2"}
	args := []any{"HSET", k}
	for i := range 300 {
		want[fmt.Sprint("field", i)] = fmt.Sprint(i)
	}
	for name, value := range want {
		args = append(args, name, value)
	}
	x.do(args...)
	x.do("PEXPIRE", k, brief)
	x.observe(touched(k))
	if seen := x.observe(touched(k)); !sameCounts(seen, schedule.Observed{}) {
		t.Errorf("the second time: %+v", seen)
	}
	x.awaitExpiry(k)
	firings := x.claimFor(lease).Firings
	if len(firings) != 1 {
		t.Fatalf("%d firings, want 1", len(firings))
	}
	var got map[string]string
	if err := json.Unmarshal(firings[0].Payload, &got); err != nil || !maps.Equal(got, want) {
		t.Errorf("%v: %.200s", err, firings[0].Payload)
	}
}
