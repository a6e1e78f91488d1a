package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/testenv"
)

// forecastOf runs timerd forecast --json and returns the timers due in each minute.
func forecastOf(t *testing.T, args ...string) map[string]int64 {
	t.Helper()
	due := map[string]int64{}
	for line := range strings.Lines(ok(t, append([]string{"forecast", "--json"}, args...)...)) {
		var m struct {
			Minute string `json:"minute"`
			Due    *int64 `json:"due"`
		}
		if err := json.Unmarshal([]byte(line), &m); err != nil || m.Due == nil {
			t.Fatalf("%s: %v", line, err)
		}
		due[m.Minute] = *m.Due
	}
	return due
}

// setAt sets n timers of an app that are due at a time.
func setAt(t *testing.T, rdb *redis.Client, app string, n int, at time.Time) {
	t.Helper()
	_, err := rdb.Pipelined(t.Context(), func(pipe redis.Pipeliner) error {
		for i := range n {
			pipe.FCall(t.Context(), "timer_set", []string{fmt.Sprintf("%s:m:%d:%d", app, at.UnixMilli(), i)}, "p",
				"PXAT", at.UnixMilli())
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestForecast(t *testing.T) {
	testenv.NoLeaks(t)
	rdb := startRedis(t).Client()
	now, err := rdb.Time(t.Context()).Result()
	if err != nil {
		t.Fatal(err)
	}
	setAt(t, rdb, "shop", 30, now.Add(10*time.Minute))
	setAt(t, rdb, "shop", 3, now.Add(20*time.Minute))
	setAt(t, rdb, "pay", 30, now.Add(20*time.Minute))
	minute := func(d time.Duration) string { return now.Add(d).UTC().Truncate(time.Minute).Format(time.RFC3339) }
	for _, c := range []struct {
		args       []string
		minutes    int
		at10, at20 int64
	}{
		{nil, 60, 30, 33},
		{[]string{"*", "--minutes", "30"}, 30, 30, 33},
		{[]string{"shop"}, 60, 30, 3},
		{[]string{"shop", "--minutes", "15"}, 15, 30, 0},
		{[]string{"pay", "--limit", "0"}, 60, 0, 30},
	} {
		due := forecastOf(t, c.args...)
		if len(due) != c.minutes || due[minute(10*time.Minute)] != c.at10 || due[minute(20*time.Minute)] != c.at20 {
			t.Errorf("forecast %q: %v", c.args, due)
		}
		sum := int64(0)
		for _, n := range due {
			sum += n
		}
		if sum != c.at10+c.at20 {
			t.Errorf("forecast %q: %d timers", c.args, sum)
		}
	}
	table := strings.Split(strings.TrimSpace(ok(t, "forecast", "--minutes", "30")), "\n")
	if len(table) != 32 || !strings.HasPrefix(table[0], "MINUTE             DUE") ||
		table[31] != "63 timers, and 0 due already" {
		t.Fatalf("forecast:\n%s", strings.Join(table, "\n"))
	}
	text := strings.Join(table, "\n")
	for at, bar := range map[time.Duration]string{10 * time.Minute: "   30  " + strings.Repeat("█", 45) + "▍",
		20 * time.Minute: "   33  " + strings.Repeat("█", 50)} {
		if want := strings.TrimSuffix(minute(at), ":00Z") + "Z" + bar + "\n"; !strings.Contains(text, want) {
			t.Errorf("no line %q in\n%s", want, text)
		}
	}
}

// A forecast of a namespace reads at most --limit timers, and prints how far it came.
func TestForecastSaysHowFarItCame(t *testing.T) {
	testenv.NoLeaks(t)
	rdb := startRedis(t).Client()
	now, err := rdb.Time(t.Context()).Result()
	if err != nil {
		t.Fatal(err)
	}
	const first = 30
	for minute := range 5 {
		setAt(t, rdb, "many", 1000, now.Add(time.Minute*time.Duration(first+minute)))
	}
	before := calls(t, rdb, "evalsha")
	code, out, errs := timerd(t, "", "forecast", "few", "--limit", "3000", "--json")
	if lines := strings.Count(out, "\n"); code != exitOK || lines <= first || lines > first+3 ||
		errs != fmt.Sprintf("timerd: 3000 of 5000 timers searched: only %d of 60 minutes are complete; --limit 0 "+
			"searches all\n", lines) {
		t.Errorf("%d %s%s", code, out, errs)
	}
	if n := calls(t, rdb, "evalsha") - before; n > 10 {
		t.Errorf("Redis was asked %d times, want a few large pages", n)
	}
	before = calls(t, rdb, "zrange")
	if out := ok(t, "forecast"); !strings.HasSuffix(out, "\n5000 timers, and 0 due already\n") {
		t.Error(out)
	}
	if n := calls(t, rdb, "zrange") - before; n > 4 {
		// who is alive, silent, or unable to publish, and where anything may repeat
		t.Errorf("Redis was asked for timers %d times to count all", n)
	}
}
