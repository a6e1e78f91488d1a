package nemesis

import (
	"fmt"
	"os"
	"slices"
	"strings"
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

func TestPlanFollowsItsSeed(t *testing.T) {
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

// Faults of one master come in a cluster alone. A silent master goes on before the others take it for failed.
func TestFaultsOfOneMaster(t *testing.T) {
	of := []string{MasterSilent, MasterSlow, MasterFrozen}
	found := map[string]bool{}
	for _, shape := range servers.Shapes() {
		for _, s := range Plan(7, shape, 10*time.Minute, nil) {
			for _, f := range s.Faults {
				if !slices.Contains(of, f.Kind) {
					continue
				}
				found[f.Kind] = true
				if shape != servers.Cluster || f.kind.part != redisPart {
					t.Errorf("%s: %s, of the parts %b", shape, f.Kind, f.kind.part)
				}
				if f.Kind == MasterSilent && f.Hold > servers.ClusterNodeTimeout-400*time.Millisecond {
					t.Errorf("silent for %v, the others wait for %v", f.Hold, servers.ClusterNodeTimeout)
				}
			}
		}
	}
	if len(found) != len(of) {
		t.Errorf("found %v, want each of %q", found, of)
	}
}

// docs/inside/torture.md has a row for each kind, and says where faults of one master come.
func TestKindsAreDocumented(t *testing.T) {
	b, err := os.ReadFile("../../../docs/inside/torture.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := strings.Split(string(b), "\n")
	for _, name := range Kinds() {
		server, rest, _ := strings.Cut(name, " ")
		i := slices.IndexFunc(rows, func(row string) bool {
			names, _, _ := strings.Cut(strings.TrimPrefix(row, "| "), " | ")
			// The first name of a row is whole, and others may lack the server.
			return strings.HasPrefix(row, "| `") && (strings.Contains(names, "`"+name+"`") ||
				strings.HasPrefix(names, "`"+server+" ") && strings.Contains(names, "`"+rest+"`"))
		})
		switch {
		case i < 0:
			t.Errorf("docs/inside/torture.md has no row for %q", name)
		case slices.Contains([]string{MasterSilent, MasterSlow, MasterFrozen}, name) &&
			!strings.HasSuffix(rows[i], "| cluster |"):
			t.Errorf("docs/inside/torture.md: %q comes in a cluster alone: %s", name, rows[i])
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
