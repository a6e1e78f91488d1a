package deliver

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestCircuitOpens(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_700_000_000, 0)
	for _, test := range []struct {
		name  string
		fails func(i int) bool
		at    int // the call that opens it; 0: none of 1,000
	}{
		{"never", func(int) bool { return false }, 0},
		{"always", func(int) bool { return true }, 20},
		{"nineteen in a row", func(i int) bool { return i%21 < 19 && i < 99 }, 100}, // and 50 % of 100
		{"every second", func(i int) bool { return i%2 == 0 }, 100},
		{"every third", func(i int) bool { return i%3 == 0 }, 0},
		{"the older ones do not count", func(i int) bool { return i < 60 && i%4 == 0 || i >= 60 && i%5 < 2 }, 0},
		{"after many successes", func(i int) bool { return i >= 500 }, 520},
	} {
		var c circuit
		opened := 0
		for i := range 1000 {
			if _, ok := c.admit(now, time.Second); !ok {
				break
			}
			if c.end(now, test.fails(i), c.begin()) {
				opened = i + 1
				break
			}
		}
		if opened != test.at {
			t.Errorf("%s: opened by call %d, want %d", test.name, opened, test.at)
		}
	}
}

func TestCircuitDoublesAndCloses(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_700_000_000, 0)
	var c circuit
	for range failuresInRow {
		c.end(now, true, c.begin())
	}
	want := firstOpen
	for range 10 {
		if wait, ok := c.admit(now, time.Second); ok || wait != want {
			t.Fatalf("admitted %t, wait %v, want %v", ok, wait, want)
		}
		if c.end(now, false, false) || c.end(now, true, false) {
			t.Fatal("a call that was begun before changed it")
		}
		now = now.Add(want)
		if _, ok := c.admit(now, time.Second); !ok || !c.begin() {
			t.Fatal("no probe when its time was over")
		}
		if wait, ok := c.admit(now, time.Second); ok || wait != time.Second {
			t.Fatalf("a second probe: %t, %v", ok, wait)
		}
		c.end(now, true, true)
		want = min(2*want, 10*time.Minute)
	}
	now = now.Add(want)
	c.admit(now, time.Second)
	c.abandon(c.begin()) // cut short: the next one is the probe
	if _, ok := c.admit(now, time.Second); !ok {
		t.Fatal("no probe after one was cut short")
	}
	if !c.end(now, false, c.begin()) || c.open() {
		t.Fatal("a probe that worked did not close it")
	}
	for i := range failuresInRow {
		if changed := c.end(now, true, c.begin()); changed != (i == failuresInRow-1) {
			t.Fatalf("changed %t by failure %d after it was closed", changed, i+1)
		}
	}
	if c.length != firstOpen {
		t.Errorf("open for %v, want %v", c.length, firstOpen)
	}
}

// Whatever happens, there is one probe at a time, no call within the time of an open circuit, and always a way out.
func TestRandomCircuits(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		now := time.Unix(1_700_000_000, 0)
		var c circuit
		var underWay []bool // probe
		probes := 0
		for range rapid.IntRange(1, 400).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0:
				now = now.Add(time.Duration(rapid.IntRange(0, 120).Draw(t, "seconds")) * time.Second)
			case 1:
				wasOpen, until := c.open(), c.until
				wait, ok := c.admit(now, time.Minute)
				if !ok && (wait <= 0 || wait > longestOpen) {
					t.Fatalf("wait %v", wait)
				}
				if ok && wasOpen && now.Before(until) {
					t.Fatal("admitted before its time")
				}
				if ok {
					probe := c.begin()
					if probe != wasOpen {
						t.Fatalf("probe %t of a circuit that is open: %t", probe, wasOpen)
					}
					if probe {
						probes++
					}
					underWay = append(underWay, probe)
				}
			default:
				if len(underWay) == 0 {
					continue
				}
				i := rapid.IntRange(0, len(underWay)-1).Draw(t, "call")
				probe := underWay[i]
				underWay = append(underWay[:i], underWay[i+1:]...)
				if probe {
					probes--
				}
				if rapid.Bool().Draw(t, "cut short") {
					c.abandon(probe)
				} else {
					c.end(now, rapid.IntRange(0, 9).Draw(t, "outcome") > 0, probe)
				}
			}
			if probes > 1 || probes == 1 != c.probing {
				t.Fatalf("%d probes, probing %t", probes, c.probing)
			}
			failed := 0
			for _, f := range c.outcomes {
				if f {
					failed++
				}
			}
			if failed != c.failed || c.row > c.failed {
				t.Fatalf("%d failures counted, %d there, %d in a row", c.failed, failed, c.row)
			}
		}
	})
}
