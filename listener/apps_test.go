package listener_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/listener"
)

func TestTimersOutsideTheNamespaces(t *testing.T) {
	t.Parallel()
	rdb := testenv.Redis(t).Client()
	set := func(key string) {
		t.Helper()
		if err := rdb.FCall(t.Context(), "timer_set", []string{key}, "p", "PX", 3_600_000).Err(); err != nil {
			t.Fatal(err)
		}
	}
	r := listen(t, rdb, rdb, "ours")
	set("before:b:c:d")
	r.healthy()
	set("after:b:c:d")
	for _, app := range []string{"before", "after"} {
		rdb.Set(t.Context(), app+":b:c:plain", "not ours", time.Hour)
		testenv.Eventually(t, bound, func() bool {
			rdb.Expire(t.Context(), app+":b:c:d", 2*time.Hour)
			due := rdb.ZScore(t.Context(), keys.Single.Due(), app+":b:c:d").Val()
			return int64(due) > time.Now().Add(90*time.Minute).UnixMilli()
		}, "EXPIRE to be followed")
		rdb.Del(t.Context(), app+":b:c:d")
		r.indexed(app+":b:c:d", false)
	}
	if n := rdb.ZCard(t.Context(), keys.Single.Due()).Val(); n != 0 {
		t.Errorf("%d timers, want none: keys outside the namespaces were adopted", n)
	}
}

// patterns waits until the server has want patterns.
func (r *recorder) patterns(want int64) {
	r.t.Helper()
	testenv.Eventually(r.t, bound, func() error {
		if n := r.rdb.PubSubNumPat(r.t.Context()).Val(); n != want {
			return fmt.Errorf("%d patterns", n)
		}
		return nil
	}, fmt.Sprintf("%d patterns", want))
}

// Of many apps outside the namespaces, the first known ones are followed, and others take the places of forgotten ones.
// Expired events of all apps count.
func TestFollowsFewAppsOutsideTheNamespaces(t *testing.T) {
	t.Parallel()
	rdb := testenv.Redis(t).Client()
	var logs testenv.Output
	r := listen(t, rdb, rdb, "ours", func(l *listener.Listener) { l.Logger = logs.Logger() })
	r.healthy()
	key := func(i int) string { return fmt.Sprintf("app%d:b:c:1", i) }
	set := func(i int, px int64) {
		t.Helper()
		if err := rdb.FCall(t.Context(), "timer_set", []string{key(i)}, "p", "PX", px).Err(); err != nil {
			t.Fatal(err)
		}
		now := rdb.Time(t.Context()).Val().UnixMilli() // so that the apps have an order
		testenv.Eventually(t, bound, func() bool { return rdb.Time(t.Context()).Val().UnixMilli() > now }, "the clock")
	}
	for i := range 40 {
		set(i, 3_600_000)
	}
	r.eventually("that there are apps beyond the followed ones",
		func() bool { return slices.Equal(r.beyond, []bool{true}) })
	r.patterns(16 + 1)
	rdb.Del(t.Context(), key(15), key(16))
	r.indexed(key(15), false)

	// Nobody hears that the TTL is shortened; all hear that it runs out.
	rdb.PExpire(t.Context(), key(39), 20*time.Millisecond)
	testenv.Eventually(t, bound, func() bool {
		rdb.Exists(t.Context(), key(39))
		return rdb.ZCard(t.Context(), keys.Single.Firing()).Val() == 1
	}, "the expired event to make it owed")
	if err := rdb.ZScore(t.Context(), keys.Single.Due(), key(16)).Err(); err != nil {
		t.Errorf("%s is not followed, but its deletion was noticed: %v", key(16), err)
	}

	// Other apps take the places of forgotten ones, until none is left unfollowed.
	for i := range 8 {
		rdb.ZRem(t.Context(), keys.Single.Known(), fmt.Sprint("app", i))
	}
	r.audited <- struct{}{}
	r.patterns(16 + 1)
	testenv.Eventually(t, bound, func() bool {
		rdb.Expire(t.Context(), key(23), 2*time.Hour)
		return int64(rdb.ZScore(t.Context(), keys.Single.Due(),
			key(23)).Val()) > time.Now().Add(90*time.Minute).UnixMilli()
	}, "app23 to be followed")
	for i := 8; i < 30; i++ {
		rdb.ZRem(t.Context(), keys.Single.Known(), fmt.Sprint("app", i))
	}
	r.audited <- struct{}{}
	r.patterns(10 + 1)
	r.eventually("that there are no apps beyond the followed ones",
		func() bool { return slices.Equal(r.beyond, []bool{true, false}) })
	set(3, 3_600_000)
	r.patterns(11 + 1)
	rdb.Del(t.Context(), key(3))
	r.indexed(key(3), false)
	if n := strings.Count(logs.String(), "than are followed"); n != 1 || r.gapsSeen() != 1 {
		t.Errorf("told %d times of apps that are not followed, %d gaps:\n%s", n, r.gapsSeen(), &logs)
	}
}
