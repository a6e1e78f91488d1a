package nemesis

import (
	"fmt"
	"testing"
	"time"

	"github.com/timerd-io/timerd/torture/internal/history"
)

func TestHoldPlanFollowsItsSeed(t *testing.T) {
	a := HoldPlan(7, 10*time.Minute, nil)
	if fmt.Sprint(a) != fmt.Sprint(HoldPlan(7, 10*time.Minute, nil)) {
		t.Error("two plans of one seed differ")
	}
	if fmt.Sprint(a) == fmt.Sprint(HoldPlan(8, 10*time.Minute, nil)) {
		t.Error("two seeds have the same plan")
	}
	kinds, crowds, kills, total := map[string]int{}, 0, 0, time.Duration(0)
	for i, c := range a {
		kinds[c.Kind]++
		if i < len(HoldKinds()) && kinds[c.Kind] > 1 {
			t.Errorf("%s comes again before all others", c.Kind)
		}
		if c.Crowd {
			crowds++
		}
		total += c.Wait
		for _, h := range c.Holds {
			total += h.For
			if h.Kill > 0 {
				kills++
			}
			if history.App(h.Namespace) != history.HeldApp || (h.How == history.Over) != (c.Kind == HeldFor) {
				t.Errorf("%s holds %+v", c.Kind, h)
			}
		}
		if overlap := c.Kind == HeldOverlap; overlap != (len(c.Holds) == 2) || overlap &&
			c.Holds[0].Namespace == c.Holds[1].Namespace {
			t.Errorf("%s has %+v", c.Kind, c.Holds)
		}
	}
	if len(kinds) != len(HoldKinds()) || crowds == 0 || kills == 0 || total > 10*time.Minute {
		t.Errorf("kinds %v, %d crowds, %d killed, %v in all", kinds, crowds, kills, total)
	}
	for _, c := range HoldPlan(7, 10*time.Minute, []string{HeldFor}) {
		if c.Kind == HeldFor {
			t.Fatalf("%s in a plan without it", c.Kind)
		}
	}
	if plan := HoldPlan(7, time.Minute, HoldKinds()); plan != nil {
		t.Errorf("%d cycles without any kind", len(plan))
	}
}
