package nemesis

import (
	"fmt"
	"testing"
	"time"

	"github.com/timerd-io/timerd/torture/internal/servers"
)

// text is a plan to compare.
func text(plan []Step) string {
	out := ""
	for _, s := range plan {
		for _, f := range s.Faults {
			out += fmt.Sprintln(f.Kind, f.Timerd, f.Pick, f.Delay, f.Hold, s.Calm)
		}
	}
	return out
}

func TestPlanIsTheSeeds(t *testing.T) {
	for _, shape := range servers.Shapes() {
		a, b := Plan(7, shape, 10*time.Minute, nil), Plan(7, shape, 10*time.Minute, nil)
		if text(a) != text(b) {
			t.Errorf("%s: two plans of one seed differ", shape)
		}
		if text(a) == text(Plan(8, shape, 10*time.Minute, nil)) {
			t.Errorf("%s: two seeds have the same plan", shape)
		}
		seen := map[string]bool{}
		combined := 0
		for _, s := range a {
			for _, f := range s.Faults {
				seen[f.Kind] = true
				if f.Hold < f.kind.min || f.Hold > f.kind.max {
					t.Errorf("%s holds %v", f.Kind, f.Hold)
				}
			}
			if len(s.Faults) > 1 {
				combined++
				if s.Faults[0].kind.part&s.Faults[1].kind.part != 0 {
					t.Errorf("%s and %s at the same time", s.Faults[0].Kind, s.Faults[1].Kind)
				}
			}
		}
		if combined == 0 {
			t.Errorf("%s: no faults are combined", shape)
		}
		for _, k := range kinds() {
			if seen[k.name] != k.in(shape) {
				t.Errorf("%s: %s in the plan: %v", shape, k.name, seen[k.name])
			}
		}
	}
}

func TestPlanWithout(t *testing.T) {
	plan := Plan(7, servers.Several, 10*time.Minute, []string{ClockStepped, Flood})
	for _, s := range plan {
		for _, f := range s.Faults {
			if f.Kind == ClockStepped || f.Kind == Flood {
				t.Fatalf("%s in a plan without it", f.Kind)
			}
		}
	}
	if len(plan) == 0 {
		t.Error("no faults at all")
	}
	if plan := Plan(7, servers.Several, time.Minute, Kinds()); plan != nil {
		t.Errorf("%d steps without any kind", len(plan))
	}
}
