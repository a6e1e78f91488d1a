package schedule_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// far is a due time in unix ms that none of these tests lives to see.
func far() int64 { return time.Now().Add(time.Hour).UnixMilli() }

// setMany sets timers of an app, the first one due at a time and each one some ms after the one before.
func (x *index) setMany(app string, n int, first, spread int64) {
	x.t.Helper()
	_, err := x.rdb.Pipelined(x.t.Context(), func(pipe redis.Pipeliner) error {
		for i := range n {
			pipe.FCall(x.t.Context(), "timer_set", []string{fmt.Sprintf("%s:b:c:%05d", app, i)}, i, "PXAT",
				first+spread*int64(i))
		}
		return nil
	})
	if err != nil {
		x.t.Fatal(err)
	}
}

// A timer that leaves the schedule during a listing hides no other one, though the later ones move up.
func TestListWhileTimersLeave(t *testing.T) {
	t.Parallel()
	const n = 1500
	for _, c := range []struct {
		name   string
		spread int64
		every  int // every n-th listed timer leaves
	}{
		{"all", 1, 1},
		{"some", 1, 20},
		{"all that are due at once", 0, 1},
		{"some that are due at once", 0, 20},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			x := newIndex(t)
			x.setMany("a", n, far(), c.spread)
			listed := 0
			err := list(t, x.Schedule, keys.Namespace{}, func(p query.Timer) bool {
				if want := fmt.Sprintf("%05d", listed); p.Key.ID != want {
					t.Errorf("timer %s is listed, want %s", p.Key.ID, want)
					return false
				}
				if listed++; listed%c.every == 0 {
					x.do("FCALL", "timer_cancel", 1, p.Key.String())
				}
				return true
			})
			if err != nil || listed != n {
				t.Errorf("listed %d of %d: %v", listed, n, err)
			}
		})
	}
}

// A timer that enters the schedule during a listing makes no timer come twice.
func TestListWhileTimersCome(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	const n = 3000
	x.setMany("b", n, far(), 1)
	listed := 0
	err := list(t, x.Schedule, keys.Namespace{App: "b"}, func(p query.Timer) bool {
		if want := fmt.Sprintf("%05d", listed); p.Key.ID != want {
			t.Errorf("timer %s is listed, want %s", p.Key.ID, want)
			return false
		}
		if listed++; listed == 10 {
			_, err := x.rdb.Pipelined(t.Context(), func(pipe redis.Pipeliner) error {
				for i := range 2500 {
					pipe.FCall(t.Context(), "timer_set", []string{fmt.Sprintf("a:b:c:%05d", i)}, i, "EX", 600)
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		}
		return true
	})
	if err != nil || listed != n {
		t.Errorf("listed %d of %d: %v", listed, n, err)
	}
}

// A search for few among many reports its progress, and stops when its caller says so.
func TestPages(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	const n = 3000
	due := far()
	x.setMany("many", n, due, 2)
	x.setMany("few", 7, due, 500)
	var pages []query.Page
	var found []string
	err := query.Pages(t.Context(), x.Schedule, query.Query{Namespace: keys.Namespace{App: "few"}},
		func(p query.Page) bool {
			if p.Total != n+7 {
				t.Errorf("%d timers in all, want %d", p.Total, n+7)
			}
			if len(pages) > 0 {
				if last := pages[len(pages)-1]; p.Looked <= last.Looked || p.Until.Before(last.Until) {
					t.Errorf("from %d until %v back to %d until %v", last.Looked, last.Until, p.Looked, p.Until)
				}
			}
			pages = append(pages, p)
			for _, timer := range p.Timers {
				found = append(found, timer.Key.ID)
			}
			return true
		})
	if err != nil || len(found) != 7 || found[6] != "00006" || len(pages) < 7 || pages[len(pages)-1].Looked != n+7 {
		t.Errorf("found %q on %d pages, %v", found, len(pages), err)
	}
	var first query.Page
	err = query.Pages(t.Context(), x.Schedule, query.Query{Namespace: keys.Namespace{App: "few"}},
		func(p query.Page) bool {
			first = p
			return len(p.Timers) == 0
		})
	if err != nil || len(first.Timers) != 1 || first.Looked > n/10 {
		t.Errorf("the first page: %d timers after %d entries, %v; want 1 after a few", len(first.Timers), first.Looked,
			err)
	}
}

// Names lists names without reading the records.
func TestNames(t *testing.T) {
	t.Parallel()
	rdb := testenv.Redis(t).Client() // of its own: what a server has counted is set back
	x := newIndexFor(t, rdb, rdb, 1000)
	x.setMany("a", 3, far(), 1)
	key, err := keys.Parse("a:b:c:00001")
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := x.Retry(t.Context(),
		schedule.Retry{EventID: "e", Key: key, Due: schedule.Millis(far() + 1000), Attempt: 2}); err != nil {
		t.Fatal(err)
	}
	x.setIn(k, "v", 1)
	x.awaitClock(x.due(k))
	x.claimFor(time.Hour)
	x.setIn("app1:b:c:owed", "v", 1)
	x.awaitClock(x.due("app1:b:c:owed"))
	x.do("CONFIG", "RESETSTAT")
	var got []string
	err = query.Names(t.Context(), x.Schedule, query.Query{}, func(p query.Page) bool {
		for _, timer := range p.Timers {
			said := fmt.Sprint(timer.Key, " ", timer.State)
			if timer.Beside {
				said += " beside"
			}
			if timer.Payload != nil || timer.Due.IsZero() {
				t.Errorf("%+v", timer)
			}
			got = append(got, said)
		}
		return true
	})
	want := []string{
		k + " firing", "app1:b:c:owed owed", "a:b:c:00000 pending", "a:b:c:00001 pending", "a:b:c:00002 pending",
		"a:b:c:00001 pending beside",
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v; want %q", got, err, want)
	}
	if stats := x.rdb.Info(t.Context(), "commandstats").Val(); strings.Contains(stats, "cmdstat_hmget") {
		t.Error("records were read")
	}
}
