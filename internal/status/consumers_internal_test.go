package status

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/streams"
)

// A backlog that has grown in each of five minutes, and a handler that only fails, are reported. A real one would take
// minutes.
func TestConsumption(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 0)
	minute := streams.Minute(now)
	type minutes map[int64]uint64 // ago
	consumer := func(waiting, settled uint64, waited, done minutes, failed map[int64]int64) Consumer {
		c := Consumer{Name: "shop~timeouts", Waiting: waiting, At: now, asking: true, settled: settled,
			of: []string{"shop"}}
		for ago := int64(60); ago >= 0; ago-- {
			if _, there := waited[ago]; there {
				c.samples = append(c.samples, streams.ConsumerSample{Minute: minute - ago, Waiting: waited[ago],
					Settled: done[ago]})
			}
		}
		c.failures = streams.PerMinute{}
		for ago, n := range failed {
			c.failures[minute-ago] = n
		}
		return c
	}
	growing := minutes{5: 1000, 4: 2000, 3: 3000, 2: 4000, 1: 5000, 0: 5500}
	idle := minutes{10: 0, 5: 0, 1: 0}
	paused := consumer(80_000, 0, growing, growing, nil)
	paused.paused = true
	unread := consumer(80_000, 0, growing, growing, nil)
	unread.asking = false // which another check tells
	for _, test := range []struct {
		name string
		c    Consumer
		want string // "" for nothing
	}{
		{"grows", consumer(80_000, 0, growing, growing, nil),
			"shop~timeouts: more events come than are handled: 80000 events of shop wait, up from 1000 within 5m"},
		{"grows with a sample left out", consumer(6000, 0, minutes{6: 1000, 3: 3000, 1: 5000}, nil, nil),
			"up from 1000"},
		{"grew for four minutes", consumer(80_000, 0, minutes{4: 2000, 3: 3000, 2: 4000, 1: 5000}, nil, nil), ""},
		{"shrank once", consumer(80_000, 0, minutes{5: 1000, 4: 2000, 3: 1999, 2: 4000, 1: 5000}, nil, nil), ""},
		{"stands still", consumer(80_000, 0, minutes{5: 80_000, 4: 80_000, 3: 80_000, 2: 80_000, 1: 80_000}, nil, nil),
			""},
		{"shrinks now", consumer(4999, 0, growing, growing, nil), ""},
		{"few events", consumer(60, 0, minutes{5: 10, 4: 20, 3: 30, 2: 40, 1: 50}, nil, nil), ""},
		{"a timerd has just begun", consumer(80_000, 0, nil, nil, nil), ""},
		{"paused", paused, ""},
		{"unread", unread, ""},
		{"only fails", consumer(0, 120, idle, minutes{10: 100, 5: 110, 1: 118}, map[int64]int64{9: 10, 4: 8, 0: 2}),
			"shop~timeouts: its handler only fails: the last 20 attempts, within 10m, and none succeeded"},
		{"only fails since a timerd began", consumer(0, 106, minutes{1: 0}, minutes{1: 100},
			map[int64]int64{1: 5, 0: 1}), "the last 6 attempts, within 1m"},
		{"only fails, seldom", consumer(0, 106, minutes{60: 0, 10: 0, 1: 0}, minutes{60: 100, 10: 105, 1: 106},
			map[int64]int64{55: 3, 40: 1, 20: 1, 5: 1}), "the last 6 attempts, within 1h"},
		{"fails seldom, and succeeded before", consumer(0, 126, minutes{60: 0, 10: 0, 1: 0},
			minutes{60: 100, 10: 125, 1: 126}, map[int64]int64{55: 3, 40: 1, 20: 1, 5: 1}), ""},
		{"fails four times", consumer(0, 104, idle, minutes{10: 100, 5: 102, 1: 104}, map[int64]int64{9: 2, 4: 2}), ""},
		{"fails mostly", consumer(0, 130, idle, minutes{10: 100, 5: 110, 1: 118}, map[int64]int64{9: 10, 4: 8, 0: 2}),
			""},
		{"one more is settled than counted", consumer(0, 121, idle, minutes{10: 100, 5: 110, 1: 118},
			map[int64]int64{9: 10, 4: 8, 0: 2}), "only fails"},
		{"was made anew", consumer(0, 20, minutes{10: 0, 5: 0}, minutes{10: 100, 5: 0}, map[int64]int64{4: 10, 2: 10}),
			"the last 20 attempts, within 5m"},
		{"works", consumer(0, 200, idle, minutes{10: 100, 5: 150, 1: 199}, nil), ""},
	} {
		var p diag.Findings
		checkConsumption([]Consumer{test.c}, jetstream.StreamConfig{Name: "TIMERS"}, &p)
		switch {
		case test.want == "" && len(p) == 0:
		case test.want == "" || len(p) != 1 || p[0].Level != diag.Warn || !strings.Contains(p[0].Text, test.want) ||
			p[0].Fix == "":
			t.Errorf("%s: %+v, want %q", test.name, p, test.want)
		}
	}
}

// The rate and the share of failures are of the time since the oldest sample of the last ten minutes that the present
// consumer has.
func TestRateOfAConsumer(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 0)
	minute := streams.Minute(now)
	for _, test := range []struct {
		name    string
		settled uint64
		samples []streams.ConsumerSample
		failed  streams.PerMinute
		want    string
	}{
		{"unknown", 100, nil, nil, "[null,null]"},
		{"only a sample of this minute", 100, []streams.ConsumerSample{{Minute: minute}}, nil, "[null,null]"},
		{"works", 700, []streams.ConsumerSample{{Minute: minute - 20}, {Minute: minute - 10, Settled: 100},
			{Minute: minute - 1, Settled: 600}}, streams.PerMinute{minute - 15: 9, minute - 5: 150}, "[1,0.25]"},
		{"made anew", 60, []streams.ConsumerSample{{Minute: minute - 9, Settled: 100}, {Minute: minute - 1}},
			streams.PerMinute{minute - 5: 9}, "[1,0]"},
		{"idle", 100, []streams.ConsumerSample{{Minute: minute - 9, Settled: 100}}, nil, "[0,null]"},
		{"counted in the minute before", 101, []streams.ConsumerSample{{Minute: minute - 10, Settled: 100}},
			streams.PerMinute{minute: 2}, "[0.0016666666666666668,1]"},
	} {
		c := Consumer{At: now, settled: test.settled, samples: test.samples, failures: test.failed}
		c.addRate()
		text, err := json.Marshal([]*float64{c.PerSecond, c.FailingShare})
		if got := string(text); err != nil || got != test.want {
			t.Errorf("%s: %s, %v, want %s", test.name, got, err, test.want)
		}
	}
}
