package schedule_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// A heartbeat carries its timerd's counts, and one without counts leaves the earlier ones.
func TestHeartbeatsCarryCounts(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	var l schedule.Lateness
	l.Add(time.Millisecond)
	l.Add(20 * time.Millisecond)
	counts := &schedule.Counts{Lateness: map[string]schedule.Lateness{"shop:order": l}, Gaps: 1}
	x.beat(schedule.Self{Instance: "a", Counts: counts})
	x.beat(schedule.Self{Instance: "b", Counts: &schedule.Counts{}})
	x.beat(schedule.Self{Instance: "c"}) // as an earlier version
	x.beat(schedule.Self{Instance: "a"})
	x.do("HSET", keys.Single.Counts(), "d", "[")
	x.age("d", 0)
	_, all := x.members()
	got := all["a"].Counts
	if got == nil || !maps.Equal(got.Lateness, counts.Lateness) || got.Gaps != 1 {
		t.Errorf("a says %+v, want %+v", got, counts)
	}
	if b := all["b"].Counts; b == nil || len(b.Lateness) != 0 || all["c"].Counts != nil || all["d"].Counts != nil {
		t.Errorf("b says %+v, c %+v, d %+v", all["b"].Counts, all["c"].Counts, all["d"].Counts)
	}

	x.age("b", 2*time.Minute)
	x.beat(schedule.Self{Instance: "c"})
	if err := x.Deregister(t.Context(), schedule.Self{Instance: "a"}); err != nil {
		t.Fatal(err)
	}
	if left := x.rdb.HKeys(t.Context(), keys.Single.Counts()).Val(); !slices.Equal(left, []string{"d"}) {
		t.Errorf("kept of %q, want d", left)
	}
}

// A quantile is off by at most the width of its bucket, from a fraction of a ms to minutes.
func TestLateness(t *testing.T) {
	t.Parallel()
	for _, late := range []time.Duration{150 * time.Microsecond, 1100 * time.Microsecond, 3 * time.Millisecond,
		250 * time.Millisecond, 30 * time.Second, 5 * time.Minute} {
		var l schedule.Lateness
		for range 980 {
			l.Add(late)
		}
		for range 20 {
			l.Add(2 * late)
		}
		for q, want := range map[float64]time.Duration{.5: late, .99: 2 * late} {
			if got := l.Quantile(q); float64(got) > 1.5*float64(want) || float64(got) < float64(want)/1.5 {
				t.Errorf("%v at %v: %v", q, want, got)
			}
		}
		text, err := json.Marshal(l)
		var again schedule.Lateness
		if err != nil || json.Unmarshal(text, &again) != nil || again != l || len(text) > 30 {
			t.Errorf("%s is %+v, want %+v, %v", text, again, l, err)
		}
	}
	var l schedule.Lateness
	if l.Quantile(.99) != 0 || l.Count() != 0 {
		t.Error("something of nothing")
	}
	l.Add(-time.Second)
	l.Add(time.Hour)
	if l.Count() != 2 || l.Quantile(.1) > time.Millisecond || l.Quantile(1) < 5*time.Minute {
		t.Errorf("%v and %v", l.Quantile(.1), l.Quantile(1))
	}
	for _, text := range []string{"[]", "[-1,1]", "[39,1,1]", "[40,1]", "7", "{}", `["a"]`} {
		if err := json.Unmarshal([]byte(text), &l); err == nil {
			t.Errorf("%s is taken", text)
		}
	}
	if l.Count() != 2 {
		t.Error("a refused call changed it")
	}
}

// BenchmarkHeartbeat tells how long Redis works on a heartbeat, with as many namespaces as are counted, each with a
// wide histogram.
//
//	go test ./schedule -run '^$' -bench Heartbeat
func BenchmarkHeartbeat(b *testing.B) {
	full := &schedule.Counts{Lateness: map[string]schedule.Lateness{}}
	for i := range 51 {
		var l schedule.Lateness
		for j := range 12 {
			for range 1000 {
				l.Add(time.Duration(100<<j) * time.Microsecond)
			}
		}
		full.Lateness[fmt.Sprintf("application%d:module:type", i)] = l
	}
	var one schedule.Lateness
	for range 1_000_000 {
		one.Add(time.Millisecond)
	}
	for name, counts := range map[string]*schedule.Counts{
		"nothing": nil, "one namespace": {Lateness: map[string]schedule.Lateness{"*": one}}, "51 namespaces": full,
	} {
		b.Run(name, func(b *testing.B) {
			x := newIndex(b)
			x.do("CONFIG", "RESETSTAT")
			for b.Loop() {
				x.beat(schedule.Self{Instance: "a", Counts: counts})
			}
			text, err := json.Marshal(counts)
			if err != nil {
				b.Fatal(err)
			}
			var calls, usec int64
			for line := range strings.Lines(x.rdb.Info(b.Context(), "commandstats").Val()) {
				if strings.HasPrefix(line, "cmdstat_fcall:") {
					if _, err := fmt.Sscanf(line, "cmdstat_fcall:calls=%d,usec=%d", &calls, &usec); err != nil {
						b.Fatal(err)
					}
				}
			}
			b.ReportMetric(float64(usec)/float64(max(calls, 1)), "redis-µs/op")
			b.ReportMetric(float64(len(text)), "bytes")
		})
	}
}
