package schedule_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/keys"
)

// minutes formats a forecast: "minute:timers" for each minute with timers, counted from the first one.
func minutes(f query.Forecast) (said string) {
	for i, m := range f.Minutes[:f.Known] {
		if m.Due > 0 {
			said += fmt.Sprintf("%d:%d ", i, m.Due)
		}
	}
	return said
}

// thisMinute returns the beginning of the present minute on the server's clock. If little of it is left, it waits for
// the next one.
func (x *index) thisMinute() time.Time {
	x.t.Helper()
	now := time.UnixMilli(x.redisNow()).UTC()
	begin := now.Truncate(time.Minute)
	if now.Sub(begin) > 40*time.Second {
		begin = begin.Add(time.Minute)
		x.awaitClock(begin.UnixMilli())
	}
	return begin
}

// A forecast counts the timers that become due in each minute, of all namespaces or of one, and the due ones apart.
func TestForecast(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	if f, err := query.ForecastAll(t.Context(), x.Schedule, 3); err != nil || minutes(f) != "" || f.Owed != 0 ||
		len(f.Minutes) != 3 {
		t.Fatalf("of nothing: %+v, %v", f, err)
	}
	all := func(query.Forecast) bool { return true }
	if f, err := query.ForecastOf(t.Context(), x.Schedule, keys.Namespace{App: "shop"}, 3, all); err != nil ||
		f.Known != 3 || minutes(f) != "" {
		t.Fatalf("of nothing: %+v, %v", f, err)
	}
	x.do("FCALL", "timer_set", 1, "shop:a:b:owed", "v", "PX", 1)
	x.awaitClock(x.due("shop:a:b:owed"))
	x.do("FCALL", "timer_set", 1, "shop:a:b:firing", "v", "PX", 1)
	x.awaitClock(x.due("shop:a:b:firing"))
	x.claimFor(time.Hour)
	x.do("FCALL", "timer_set", 1, "pay:a:b:owed", "v", "PX", 1)
	x.awaitClock(x.due("pay:a:b:owed"))

	begin := x.thisMinute()
	for i, at := range []time.Duration{
		59*time.Second + 999*time.Millisecond,                                  // the present minute
		time.Minute, 119 * time.Second, 119*time.Second + 999*time.Millisecond, // the next one
		59 * time.Minute, 60 * time.Minute, 24 * time.Hour,
	} {
		for _, app := range []string{"shop", "pay", "pay"} {
			key := fmt.Sprintf("%s:a:b:%d-%d", app, i, len(x.dues))
			x.do("FCALL", "timer_set", 1, key, "v", "PXAT", begin.Add(at).UnixMilli())
		}
	}
	f, err := query.ForecastAll(t.Context(), x.Schedule, 60)
	if err != nil || minutes(f) != "0:3 1:9 59:3 " || f.Owed != 3 || !f.Minutes[0].Begin.Equal(begin) {
		t.Errorf("%s%+v, %v", minutes(f), f, err)
	}
	f, err = query.ForecastOf(t.Context(), x.Schedule, keys.Namespace{App: "shop"}, 60, all)
	if err != nil || minutes(f) != "0:1 1:3 59:1 " || f.Owed != 2 || f.Known != 60 || f.Looked != f.Total {
		t.Errorf("of a namespace: %s%+v, %v", minutes(f), f, err)
	}
	if f, err := query.ForecastAll(t.Context(), x.Schedule, 24*60+1); err != nil ||
		minutes(f) != "0:3 1:9 59:3 60:3 1440:3 " {
		t.Errorf("of a day: %s, %v", minutes(f), err)
	}
}

// A forecast of a namespace that ends early has only the minutes it has completed.
func TestForecastThatIsEndedEarly(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	begin := x.thisMinute()
	for minute := range 4 {
		x.setMany(fmt.Sprint("app", minute), 1000, begin.Add(time.Minute*time.Duration(minute+1)).UnixMilli(), 1)
	}
	f, err := query.ForecastOf(t.Context(), x.Schedule, keys.Namespace{App: "app2"}, 60,
		func(f query.Forecast) bool { return f.Looked < 2500 })
	if err != nil || f.Known != 3 || minutes(f) != "" || f.Looked < 2500 || f.Looked > 3000 || f.Total != 4000 {
		t.Errorf("%s%+v, %v; want the counts after 2500 of 4000 timers", minutes(f), f, err)
	}
	f, err = query.ForecastOf(t.Context(), x.Schedule, keys.Namespace{App: "app2"}, 4,
		func(query.Forecast) bool { return true })
	if err != nil || f.Known != 4 || minutes(f) != "3:1000 " {
		t.Errorf("%s%+v, %v", minutes(f), f, err)
	}
}

// In a cluster the counts are those of all nodes.
func TestForecastOfACluster(t *testing.T) {
	t.Parallel()
	x := newClusterIndex(t)
	const n = 60
	for i := range n {
		x.set(fmt.Sprint("a:b:c:", i), "p", 10*time.Minute)
	}
	x.set("z:b:c:1", "p", 10*time.Minute)
	var sum int64
	f, err := query.ForecastAll(t.Context(), x.Schedule, 15)
	for _, m := range f.Minutes {
		sum += m.Due
	}
	if err != nil || sum != n+1 || f.Moving != 0 || f.Owed != 0 {
		t.Errorf("%+v, %v; want %d timers", f, err, n+1)
	}
	f, err = query.ForecastOf(t.Context(), x.Schedule, keys.Namespace{App: "a"}, 15,
		func(query.Forecast) bool { return true })
	sum = 0
	for _, m := range f.Minutes {
		sum += m.Due
	}
	if err != nil || sum != n || f.Known != 15 {
		t.Errorf("of a namespace: %+v, %v; want %d timers", f, err, n)
	}
}

// The number of due timers is the same for all namespaces and for one, and a repeating timer counts for each occurrence
// in the window.
func TestForecastOfRepetitionsAndHeldTimers(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	begin := x.thisMinute()
	from := begin.Add(time.Minute).UnixMilli() // so that nothing of them is due in the present minute
	repeats := func(key string, args ...any) {
		x.do(append([]any{"FCALL", "timer_repeat", 1, key, "p"}, args...)...)
	}
	repeats("shop:a:b:minute", "EVERY", 60_000, "FROM", from)
	repeats("shop:a:b:second", "EVERY", 1000, "FROM", from, "UNTIL", from+120_000)
	repeats("shop:a:b:three", "EVERY", 60_000, "FROM", from, "TIMES", 3)
	repeats("shop:a:b:moved", "EVERY", 60_000, "FROM", from)
	repeats("shop:a:b:cron", "CRON", "30 * * * * *", "FROM", from)
	x.claimFor(time.Hour) // which plans it
	x.do("PEXPIREAT", "shop:a:b:moved", from+150_000)
	x.observe(touched("shop:a:b:moved"))
	const want = "1:63 2:63 3:5 4:3 "
	all := func(query.Forecast) bool { return true }
	for name, forecast := range map[string]func() (query.Forecast, error){
		"all": func() (query.Forecast, error) { return query.ForecastAll(t.Context(), x.Schedule, 5) },
		"of namespace": func() (query.Forecast, error) {
			return query.ForecastOf(t.Context(), x.Schedule, keys.Namespace{App: "shop"}, 5, all)
		},
	} {
		if f, err := forecast(); err != nil || minutes(f) != want || f.Expanded != 5 || f.Cut {
			t.Errorf("%s: %s, %d expanded, %v; want %s", name, minutes(f), f.Expanded, err, want)
		}
	}

	x.hold("shop")
	x.becomeDue("shop:a:b:held1", "shop:a:b:held2")
	x.claimFor(lease) // which sees that they are held
	for name, forecast := range map[string]func() (query.Forecast, error){
		"all": func() (query.Forecast, error) { return query.ForecastAll(t.Context(), x.Schedule, 5) },
		"of namespace": func() (query.Forecast, error) {
			return query.ForecastOf(t.Context(), x.Schedule, keys.Namespace{App: "shop"}, 5, all)
		},
	} {
		if f, err := forecast(); err != nil || f.Owed != 2 {
			t.Errorf("%s: %d due already, %v; want the 2 that are held", name, f.Owed, err)
		}
	}
}
