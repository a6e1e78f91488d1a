package nemesis

import (
	"fmt"
	"testing"
	"time"
)

// troubleText is plans to compare.
func troubleText(plans [][]Trouble) string {
	out := ""
	for _, plan := range plans {
		for _, t := range plan {
			out += fmt.Sprintln(t.Kind, t.Wait, t.For, t.Pick, t.Crowd)
		}
	}
	return out
}

func TestTroublePlansFollowTheirSeed(t *testing.T) {
	const length = 10 * time.Minute
	a := TroublePlans(7, length, nil)
	if troubleText(a) != troubleText(TroublePlans(7, length, nil)) {
		t.Error("two plans of one seed differ")
	}
	if troubleText(a) == troubleText(TroublePlans(8, length, nil)) {
		t.Error("two seeds have the same plan")
	}
	seen, crowds := map[string]bool{}, 0
	for host, plan := range a {
		total := time.Duration(0)
		for _, p := range plan {
			seen[p.Kind] = true
			total += p.Wait + p.For
			if p.kind.host != (host == 1) || p.For < p.kind.min || p.For > p.kind.max {
				t.Errorf("%s for %v in plan %d", p.Kind, p.For, host)
			}
			if p.Crowd {
				crowds++
			}
		}
		if total > length || total < length/2 {
			t.Errorf("plan %d takes %v", host, total)
		}
	}
	if len(seen) != len(troubles()) || crowds == 0 {
		t.Errorf("kinds %v, %d crowds", seen, crowds)
	}
	for _, plan := range TroublePlans(7, length, []string{DeliverKilled, HostDead}) {
		for _, p := range plan {
			if p.Kind == DeliverKilled || p.Kind == HostDead {
				t.Fatalf("%s in a plan without it", p.Kind)
			}
		}
	}
	if plans := TroublePlans(7, time.Minute, Kinds()); len(plans[0])+len(plans[1]) != 0 {
		t.Errorf("%v without any kind", plans)
	}
}
