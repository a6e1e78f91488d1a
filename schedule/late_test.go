package schedule_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/policy"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

func most(d time.Duration) policy.Limit { return policy.Limit{Given: true, Most: d} }

// record returns the record of a pending timer.
func (x *index) record(member string) string {
	x.t.Helper()
	return fmt.Sprint(x.do("HGET", keys.Single.Data(), member))
}

// A limit stays with its timer, whatever happens to its key's TTL.
func TestLimitStaysWithItsTimer(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args   []any // after the payload
		record string
		want   policy.Limit
		get    string // behind the state
	}{
		{[]any{"PX", 60000}, ":p", policy.Limit{}, ""},
		{[]any{"PX", 60000, "ATTEMPT", 3}, "3:p", policy.Limit{}, ""},
		{[]any{"PX", 60000, "LATE", 300000}, ";L=300000:p", most(5 * time.Minute), " late 300000"},
		{[]any{"late", "300000", "drop", "px", 60000}, ";D=300000:p",
			policy.Limit{Given: true, Most: 5 * time.Minute, Drop: true}, " late 300000"},
		{[]any{"NX", "LATE", 1, "ATTEMPT", 3, "PX", 60000}, "3;L=1:p", most(time.Millisecond), " late 1"},
		{[]any{"LATE", 1, "DROP", "NX", "PX", 60000}, ";D=1:p",
			policy.Limit{Given: true, Most: time.Millisecond, Drop: true}, " late 1"},
		{[]any{"PX", 60000, "LATE", "-0"}, ";L=0:p", policy.Limit{Given: true}, ""},
		{[]any{"PX", 60000, "LATE", int64(315360000000)}, ";L=315360000000:p", most(policy.Longest),
			" late 315360000000"},
	} {
		x := newIndex(t)
		x.do(append([]any{"FCALL", "timer_set", 1, k, "p"}, c.args...)...)
		if got := x.record(k); got != c.record {
			t.Errorf("%v: the record is %q, want %q", c.args, got, c.record)
		}
		x.do("PEXPIRE", k, 90000)
		x.observe(touched(k))
		if got := fmt.Sprint(x.do("FCALL_RO", "timer_get", 1, k)); !strings.HasSuffix(got,
			" payload p state pending"+c.get+"]") {
			t.Errorf("%v: timer_get: %s", c.args, got)
		}
		// A flag beside the limit notes that the key was evicted.
		x.do("DEL", k)
		x.observe(evicted(k), gone(k))
		rest := strings.TrimLeft(c.record, "0123456789")
		if got, want := x.record(k), strings.TrimSuffix(c.record, rest)+"e"+rest; got != want {
			t.Errorf("%v: the record of the evicted timer is %q, want %q", c.args, got, want)
		}
		x.do("ZADD", keys.Single.Due(), x.redisNow(), k)
		f := x.claims(k + " deadline p")[0]
		if f.Late != c.want {
			t.Errorf("%v: claimed with %+v, want %+v", c.args, f.Late, c.want)
		}
		if got := fmt.Sprint(x.do("FCALL_RO", "timer_get", 1, k)); !strings.HasSuffix(got, " state firing"+c.get+"]") {
			t.Errorf("%v: timer_get of the firing: %s", c.args, got)
		}
	}
}

func TestPlainSetForgetsTheLimit(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.do("FCALL", "timer_set", 1, k, "p", "PX", 60000, "LATE", 5)
	x.do("SET", k, "new", "PX", 60000)
	x.observe(touched(k))
	if got := x.record(k); got != ":new" {
		t.Errorf("the record is %q, want %q", got, ":new")
	}
}

func TestRetryHasTheLimit(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	key, err := keys.Parse(k)
	if err != nil {
		t.Fatal(err)
	}
	limit := policy.Limit{Given: true, Most: time.Second, Drop: true}
	for i, r := range []schedule.Retry{
		{Payload: []byte("p")},                           // the key's own timer
		{Status: schedule.PayloadTooLarge},               // beside it
		{Status: schedule.PayloadMissing, Due: 1},        // owed
		{Payload: []byte(";L=5:p"), Attempt: 7, Due: 12}, // a payload that looks like an option
	} {
		r.EventID, r.Key, r.Late = fmt.Sprint(i), key, limit
		r.Attempt = max(r.Attempt, 2)
		if r.Due == 0 {
			r.Due = schedule.Millis(x.redisNow() + brief + int64(i))
		}
		if _, _, err := x.Retry(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	x.awaitClock(x.redisNow() + brief + 10)
	for _, f := range x.claims(k+" deadline p", k+" deadline status 2", k+" deadline status 1", k+" deadline ;L=5:p") {
		if f.Late != limit {
			t.Errorf("%s of %q was claimed with %+v, want %+v", f.Ref, f.Payload, f.Late, limit)
		}
	}
}
