package service

import (
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/timerd-io/timerd/keys"
)

// A counter that is not there until it counts hides its first increment.
func TestMetricsStartAtZero(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	newMetrics(registry, keys.Namespaces{{App: "shop"}}, func() int { return 0 })
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	series := map[string]int{}
	for _, f := range families {
		series[f.GetName()] = len(f.GetMetric())
	}
	for name, want := range map[string]int{
		"timerd_fired_total": 8, "timerd_lateness_seconds": 2, "timerd_publish_failures_total": 7, "timerd_dead_letters_total": 2,
		"timerd_library_calls_total": 2, "timerd_due_timers": 3,
	} {
		if series[name] != want {
			t.Errorf("%d series of %s, want %d", series[name], name, want)
		}
	}
}

// However many namespaces there are, the first 50 have series of their own, and all others one together.
func TestSeriesOfNamespacesAreBounded(t *testing.T) {
	t.Parallel()
	many := make(keys.Namespaces, 60)
	for i := range many {
		many[i].App = fmt.Sprint("app", i)
	}
	registry := prometheus.NewRegistry()
	newMetrics(registry, many, func() int { return 0 })
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, f := range families {
		if f.GetName() != "timerd_lateness_seconds" {
			continue
		}
		for _, m := range f.GetMetric() {
			found[m.GetLabel()[0].GetValue()] = true
		}
	}
	if len(found) != 51 || !found["app0"] || !found["app49"] || found["app50"] || !found[keys.Other] {
		t.Errorf("%d series: %v", len(found), found)
	}
}
