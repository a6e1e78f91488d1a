package schedule_test

import (
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/testenv"
)

// A step of a server's clock is noticed in either direction. Slow, late or overtaken readings and a slewed clock are no
// steps.
func TestClockSteps(t *testing.T) {
	t.Parallel()
	began := time.Now()
	// ahead is the lead of the server's clock in the middle of the reading
	type reading struct{ sent, took, ahead time.Duration }
	for name, c := range map[string]struct {
		readings []reading
		want     []time.Duration
	}{
		"right": {[]reading{{}, {sent: time.Second}, {sent: time.Hour, ahead: time.Minute}}, nil},
		"slewed": {[]reading{{}, {sent: 10 * time.Second, ahead: 900 * time.Millisecond},
			{sent: 20 * time.Second, ahead: 1800 * time.Millisecond}}, nil},
		"forward": {[]reading{{}, {sent: time.Second, ahead: time.Hour},
			{sent: 2 * time.Second, ahead: time.Hour}}, []time.Duration{time.Hour}},
		"forward and back": {[]reading{{}, {sent: time.Second, ahead: time.Minute}, {sent: 2 * time.Second}},
			[]time.Duration{time.Minute, -time.Minute}},
		"a slow answer": {[]reading{{}, {sent: time.Second, took: 20 * time.Second, ahead: 9 * time.Second},
			{sent: 22 * time.Second}}, nil},
		"more than it can be": {[]reading{{}, {sent: time.Second, took: 20 * time.Second, ahead: time.Minute}},
			[]time.Duration{time.Minute}},
		"an overtaken reading": {[]reading{{}, {sent: 2 * time.Second, ahead: time.Hour}, {sent: time.Second},
			{sent: 3 * time.Second, ahead: time.Hour}}, []time.Duration{time.Hour}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			node := testenv.NewSchedule(t).Node
			node.TakeClockSteps()
			// The readings lie in the future, so that those of the test's own start are older.
			at := began.Add(time.Hour)
			for _, r := range c.readings {
				sent := at.Add(r.sent)
				node.ReadClock(sent.Add(r.took/2+r.ahead), sent, sent.Add(r.took))
			}
			steps := node.TakeClockSteps()
			if len(steps) != len(c.want) || len(node.TakeClockSteps()) != 0 {
				t.Fatalf("%+v, want %v", steps, c.want)
			}
			for i, step := range steps {
				if step.By != c.want[i] {
					t.Errorf("step %d by %v, want %v", i, step.By, c.want[i])
				}
			}
		})
	}
}
