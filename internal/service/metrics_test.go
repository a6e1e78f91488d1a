package service

import (
	"fmt"
	"os"
	"regexp"
	"testing"

	"github.com/timerd-io/timerd/internal/deliver"
	"github.com/timerd-io/timerd/internal/retry"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/notify"
)

// observeAll registers the metrics of timerd serve.
func observeAll(r registry, namespaces keys.Namespaces) {
	newMetrics(r, namespaces).observe(r, notify.NewPublisher(nil, nil, nil), retry.NewConsumer(nil, nil))
}

// A counter that is not there until it counts hides its first increment.
func TestMetricsStartAtZero(t *testing.T) {
	t.Parallel()
	registry := newRegistry()
	observeAll(registry, keys.Namespaces{{App: "shop"}})
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	series := map[string]int{}
	for _, f := range families {
		series[f.GetName()] = len(f.GetMetric())
	}
	for name, want := range map[string]int{
		"timerd_fired_total": 8, "timerd_lateness_seconds": 2, "timerd_publish_failures_total": 7,
		"timerd_dead_letters_total":  2,
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
	registry := newRegistry()
	observeAll(registry, many)
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

// The tests of the alerts begin as a fresh process does: a counter that it shows with 0 or more, one that it does not
// show without a value.
func TestRulesAreTestedFromTheBeginning(t *testing.T) {
	t.Parallel()
	fresh := map[string]bool{}
	ofServe, ofDeliver := newRegistry(), newRegistry()
	observeAll(ofServe, keys.Namespaces{{App: "shop"}})
	observeDeliveries(ofDeliver, deliver.New(nil, &deliver.Config{}), &deliverer{})
	for _, registry := range []registry{ofServe, ofDeliver} {
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				name := f.GetName()
				for _, label := range m.GetLabel() {
					name += fmt.Sprintf(",%s=%q", label.GetName(), label.GetValue())
				}
				fresh[name] = true
			}
		}
	}
	tests, err := os.ReadFile("../../deploy/prometheus/timerd.rules_test.yml")
	if err != nil {
		t.Fatal(err)
	}
	all := regexp.MustCompile(
		`series: '(timerd_[a-z_]+_total)\{job="[a-z]+",instance="[a-z]"([^}]*)\}', values: '(.)`).FindAllStringSubmatch(
		string(tests), -1)
	if len(all) < 20 {
		t.Errorf("%d counters", len(all))
	}
	for _, series := range all {
		if absent := series[3] == "_"; absent == fresh[series[1]+series[2]] {
			t.Errorf("%s%s: a fresh process shows it: %t, and the test begins with %s", series[1], series[2], !absent,
				series[3])
		}
	}
}
