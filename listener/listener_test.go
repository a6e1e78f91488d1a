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
	"github.com/timerd-io/timerd/schedule"
)

func TestFollowsEvents(t *testing.T) {
	t.Parallel()
	rdb := testenv.Redis(t).Client()
	r := listen(t, rdb, rdb, "shop:order,pay")
	r.healthy()
	ctx := t.Context()

	r.adopts("shop:order:cancel:1")
	rdb.Persist(ctx, "shop:order:cancel:1")
	r.indexed("shop:order:cancel:1", false)
	r.adopts("pay:order:callback:1")

	// Not ours, though the pattern lets some of them through.
	for _, key := range []string{"shop:refund:cancel:1", "foreign:a:b:c", "shop:order", "payx:order:callback:1",
		"x:shop:order:cancel:1"} {
		rdb.Set(ctx, key, "", time.Hour)
	}
	r.adopts("shop:order:last:1")
	if n := rdb.ZCard(ctx, keys.Single.Due()).Val(); n != 2 {
		t.Errorf("%d timers in the index, want 2: %v", n, rdb.ZRange(ctx, keys.Single.Due(), 0, -1).Val())
	}
}

// A session that comes back reads events at once, even if reading the known apps takes long: a busy master of a cluster
// answers hundreds of calls one by one.
func TestReadsBeforeTheAppsAreKnown(t *testing.T) {
	t.Parallel()
	rdb := testenv.Redis(t).Client()
	set := func(key string) {
		t.Helper()
		if err := rdb.FCall(t.Context(), "timer_set", []string{key}, "p", "PX", 3600_000).Err(); err != nil {
			t.Fatal(err)
		}
	}
	r := listen(t, rdb, rdb, "shop:order,pay,a:b:c,d", quick)
	r.healthy()
	followed := func() bool { return rdb.PubSubNumPat(t.Context()).Val() == 5 }
	set("outside:b:c:1")
	testenv.Eventually(t, bound, followed, "the app outside the namespaces to be followed")
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	r.note(func() { r.apps = func() { <-release } })
	n := r.gapsSeen()
	rdb.ClientKillByFilter(t.Context(), "TYPE", "pubsub")
	r.gapAfter(n)
	r.adopts("shop:order:c:1")
	testenv.Eventually(t, bound, followed, "it to be followed again")
	rdb.Del(t.Context(), "shop:order:c:1", "outside:b:c:1")
	r.indexed("shop:order:c:1", false)
	r.indexed("outside:b:c:1", false)
}

// Apps that are announced while a session begins do not take the place of those followed in the last one.
func TestAppsAnnouncedWhileASessionBegins(t *testing.T) {
	t.Parallel()
	rdb := testenv.Redis(t).Client()
	set := func(key string) {
		t.Helper()
		if err := rdb.FCall(t.Context(), "timer_set", []string{key}, "p", "PX", 3600_000).Err(); err != nil {
			t.Fatal(err)
		}
	}
	r := listen(t, rdb, rdb, "ours", quick)
	r.healthy()
	follows := func(n int64) {
		t.Helper()
		testenv.Eventually(t, bound, func() bool { return rdb.PubSubNumPat(t.Context()).Val() == n },
			"the apps to be followed")
	}
	set("last:b:c:1")
	follows(2)
	begins, release, end := make(chan struct{}, 9), make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { close(end) })
	r.note(func() {
		r.hear = func() { begins <- struct{}{}; <-release }
		r.apps = func() { <-end }
	})
	rdb.ClientKillByFilter(t.Context(), "TYPE", "pubsub")
	<-begins
	set("new:b:c:1")
	follows(2)
	close(release)
	follows(3)
	rdb.Del(t.Context(), "last:b:c:1", "new:b:c:1")
	r.indexed("last:b:c:1", false)
	r.indexed("new:b:c:1", false)
}

// A session takes no app for gone before it has read the known apps.
func TestUnfollowedAppsStay(t *testing.T) {
	t.Parallel()
	rdb := testenv.Redis(t).Client()
	r := listen(t, rdb, rdb, "ours", quick)
	r.healthy()
	for i := range listener.MaxFollowed + 1 {
		if err := rdb.FCall(t.Context(), "timer_set", []string{fmt.Sprintf("app%d:b:c:1", i)}, "p", "PX",
			3600_000).Err(); err != nil {
			t.Fatal(err)
		}
	}
	r.eventually("an app that is not followed", func() bool { return slices.Equal(r.beyond, []bool{true}) })
	end := make(chan struct{})
	t.Cleanup(func() { close(end) })
	r.note(func() { r.apps = func() { <-end } })
	n := r.gapsSeen()
	rdb.ClientKillByFilter(t.Context(), "TYPE", "pubsub")
	r.gapAfter(n)
	r.note(func() {
		if !slices.Equal(r.beyond, []bool{true}) {
			t.Errorf("whether there are apps that are not followed: %v, want true alone", r.beyond)
		}
	})
}

func TestNamespacesWithGlobCharacters(t *testing.T) {
	t.Parallel()
	rdb := testenv.Redis(t).Client()
	r := listen(t, rdb, rdb, "a%5Bb%5D%3F%2A%5C%5E-")
	r.healthy()
	r.adopts(`a[b]?*\^-:m:t:id`)
}

func TestEveryKindOfEvent(t *testing.T) {
	t.Parallel()
	rdb := testenv.Redis(t).Client()
	r := listen(t, rdb, rdb, "*")
	r.healthy()
	ctx := t.Context()
	const key = "a:b:c:d"

	rdb.HSet(ctx, key, "f", "1")
	rdb.Expire(ctx, key, time.Hour)
	r.indexed(key, true)
	rdb.HSet(ctx, key, "f", "2")
	testenv.Eventually(t, bound, func() bool {
		return rdb.HGet(ctx, keys.Single.Data(), key).Val() == `:{"f":"2"}`
	}, "the payload to follow the hash")
	rdb.Rename(ctx, key, key+"2")
	r.indexed(key, false)
	r.indexed(key+"2", true)
	rdb.Unlink(ctx, key+"2")
	r.indexed(key+"2", false)

	rdb.Set(ctx, key, "gone soon", time.Hour)
	r.indexed(key, true)
	rdb.PExpire(ctx, key, 20*time.Millisecond)
	testenv.Eventually(t, bound, func() bool {
		rdb.Exists(ctx, key)
		return rdb.ZCard(ctx, keys.Single.Firing()).Val() == 1
	}, "the expired event to make it owed")
	r.eventually("the report of it", func() bool { return r.observed.Owed == 1 })
}

func TestWakesForTimersSetThroughTheLibrary(t *testing.T) {
	t.Parallel()
	rdb := testenv.Redis(t).Client()
	r := listen(t, rdb, rdb, "other")
	r.healthy()
	due, err := rdb.FCall(t.Context(), "timer_set", []string{"a:b:c:d"}, "p", "PX", 60000).Int64()
	if err != nil {
		t.Fatal(err)
	}
	r.eventually("a wake-up", func() bool { return slices.Contains(r.wakes, schedule.Millis(due)) })
}

func TestRefusesLongKeys(t *testing.T) {
	t.Parallel()
	rdb := testenv.Redis(t).Client()
	r := listen(t, rdb, rdb, "a")
	r.healthy()
	for _, key := range []string{"a:b:c:" + strings.Repeat("d", 1200), "a:" + strings.Repeat("b", 129) + ":c:d",
		"other:" + strings.Repeat("b", 129) + ":c:d"} {
		rdb.Set(t.Context(), key, "p", time.Hour)
	}
	r.adopts("a:b:c:d")
	r.eventually("refusals", func() bool { return len(r.refused) >= 2 })
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, key := range r.refused {
		if !strings.HasPrefix(key, "a:b") {
			t.Errorf("refused %q", key)
		}
	}
	if n := rdb.ZCard(t.Context(), keys.Single.Due()).Val(); n != 1 {
		t.Errorf("%d timers, want 1", n)
	}
}
