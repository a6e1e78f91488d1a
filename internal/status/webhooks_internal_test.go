package status

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/diag"
)

// What takes minutes to come about.
func TestWebhooksThatAreBehind(t *testing.T) {
	t.Parallel()
	now := time.Now()
	consumer := func(name string, waiting uint64, working int, oldest, last time.Duration, asking bool) Consumer {
		return Consumer{Name: name, Waiting: waiting, Working: working, Oldest: now.Add(-oldest), Last: now.Add(-last),
			At: now, asking: asking}
	}
	unknown := func(last time.Duration) Consumer {
		c := consumer("unknown", 3, 0, 0, last, false)
		c.Oldest = time.Time{}
		return c
	}
	never := unknown(0)
	never.Last = time.Time{}
	kept := jetstream.StreamConfig{Name: "TIMERS", MaxAge: 168 * time.Hour}
	const behind, gone = "because there is no place for more calls", "and no timerd deliver asks for them"
	for _, test := range []struct {
		name      string
		consumers []Consumer
		of        jetstream.StreamConfig
		want      []string
	}{
		{"idle for long", []Consumer{consumer("a", 0, 0, 0, time.Hour, true), consumer("b", 0, 0, 0, time.Hour, false)},
			kept, nil},
		{"busy", []Consumer{consumer("a", 5, 64, 59*time.Second, 0, false)}, kept, nil},
		{"just started", []Consumer{consumer("a", 5, 0, 9*time.Second, time.Hour, false)}, kept, nil},
		{"too busy", []Consumer{consumer("a", 5, 64, 61*time.Second, time.Second, false),
			consumer("b", 0, 0, 0, 0, true)}, kept,
			[]string{"a: 5 events wait, the oldest for 1m 1s, " + behind + "; TIMERS drops them 7d after they fired"}},
		{"killed with a call under way", []Consumer{consumer("a", 0, 1, 0, 61*time.Second, false)}, kept,
			[]string{"a: 1 event waits, " + gone + ";"}},
		{"of unknown age", []Consumer{unknown(time.Hour)}, jetstream.StreamConfig{Name: "TIMERS"},
			[]string{"unknown: 3 events wait, " + gone}},
		{"of unknown age, just started again", []Consumer{unknown(59 * time.Second)}, kept, nil},
		{"of unknown age, never asked for", []Consumer{never}, kept, nil},
		{"several", []Consumer{consumer("a", 1, 0, time.Minute, 0, false), consumer("b", 2, 0, time.Hour, 0, false),
			consumer("c", 2, 0, 2*time.Hour, 0, true)}, kept,
			[]string{"a, b: 3 events wait, the oldest for 1h, " + gone, "c: 2 events wait, the oldest for 2h, " +
				behind}},
	} {
		var p diag.Findings
		checkConsumers(test.consumers, test.of, &p)
		var got []string
		for _, problem := range p {
			got = append(got, problem.Text)
			if problem.Level != diag.Warn || problem.Fix == "" {
				t.Errorf("%s: %+v", test.name, problem)
			}
		}
		if !slices.EqualFunc(got, test.want, strings.HasPrefix) {
			t.Errorf("%s:\n%s\nwant\n%s", test.name, strings.Join(got, "\n"), fmt.Sprint(test.want))
		}
	}
}

// Whoever makes a consumer chooses its name, and an operator pastes the command that removes it.
func TestIdleConsumersOfStrangeNames(t *testing.T) {
	t.Parallel()
	now := time.Now()
	var p diag.Findings
	checkIdle([]Consumer{{Name: "x;reboot", Waiting: 1, Oldest: now.Add(-time.Hour), At: now}},
		jetstream.StreamConfig{Name: "TIMERS"}, &p)
	if len(p) != 1 || !strings.HasSuffix(p[0].Fix, "nats consumer rm TIMERS 'x;reboot' --force") {
		t.Errorf("%+v", p)
	}
}
