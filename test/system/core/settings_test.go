package core_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/test/system"
)

// The stream of firings is made as the settings say, and status shows how.
func TestStreamsAreMadeByTheSettings(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	p := s.Start("TIMERD_STREAM_MAX_AGE=24h", "TIMERD_STREAM_MAX_BYTES=5000000")
	out := strings.Join(strings.Fields(s.StatusSays(0, "ok: nothing is wrong")), " ")
	if !strings.Contains(out,
		" TIMERS 0 0 B 1d 5.0 MB 1 of 1 TIMERS_RETRY 0 0 B ever no limit 1 of 1 TIMERS_DEAD 0 0 B ever "+
			"no limit 1 of 1") {
		t.Errorf("status:\n%s", out)
	}
	p.Stop()
}

// An attempt in a payload that the policy does not allow is no retry count: it uses up nothing.
func TestAttemptsOfPayloads(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	s.Env["TIMERD_RETRY"] = "*=100ms,100ms"
	p := s.Start()
	c := s.Collect()
	is := func(e event.Event, attempt int) {
		t.Helper()
		if e.Attempt != attempt || e.MaxAttempts != 3 {
			t.Errorf("%s of %s fired as attempt %d/%d, want %d/3", e.Key, e.Data, e.Attempt, e.MaxAttempts, attempt)
		}
	}
	s.Do("FCALL", "timer_set", 1, "a:b:c:explicit", `{"attempt":20}`, "PX", 200)
	s.Do("SET", "a:b:c:plain", `{"attempt":20}`, "PX", system.Soon)
	s.Do("FCALL", "timer_set", 1, "a:b:c:counts", `{"attempt":3}`, "PX", 2100)
	s.Adopted("a:b:c:plain")
	for _, e := range s.Events(c, 3) {
		want := 1
		if e.Key.ID == "counts" {
			want = 3
		}
		is(e, want)
	}
	s.Retry(c.All()[0])
	is(s.Events(c, 4)[3], 2)
	s.NoRequests()
	p.Stop()

	s.Start("TIMERD_PAYLOAD_ATTEMPT=off")
	s.Do("FCALL", "timer_set", 1, "a:b:c:off", `{"attempt":3}`, "PX", 100)
	is(s.Events(c, 5)[4], 1)
	s.Settled()
}

// However payloads travel, retries, dead letters and replays bring the same bytes, in the same form.
func TestFormsOfPayloads(t *testing.T) {
	t.Parallel()
	payloads := []string{"12345678901234567890", "1.10", "007", `{ "a":1.0 }`, `"text"`, "text", "", "\xff\x00"}
	for _, test := range []struct {
		setting string
		form    func(payload string) string
	}{
		{"auto", func(payload string) string { return event.DataContentType([]byte(payload)) }},
		{"text", func(payload string) string {
			if payload == "\xff\x00" {
				return event.DataBinary
			}
			return event.DataText
		}},
		{"base64", func(string) string { return event.DataBinary }},
	} {
		t.Run(test.setting, func(t *testing.T) {
			t.Parallel()
			s := system.New(t)
			s.Env["TIMERD_RETRY"] = "*=100ms"
			s.Env["TIMERD_EVENT_DATA"] = test.setting
			p := s.Start()
			c := s.Collect()
			check := func(what string, all []event.Event) {
				t.Helper()
				for _, e := range all {
					var i int
					if _, err := fmt.Sscan(e.Key.ID, &i); err != nil {
						t.Fatal(err)
					}
					if string(e.Data) != payloads[i] || e.Data == nil || e.ContentType != test.form(payloads[i]) {
						t.Errorf("%s brings %q as %s, want %q as %s", what, e.Data, e.ContentType, payloads[i],
							test.form(payloads[i]))
					}
				}
			}
			n := len(payloads)
			for i, payload := range payloads {
				s.Do("FCALL", "timer_set", 1, fmt.Sprintf("a:b:c:%d", i), payload, "PX", 100)
			}
			check("the firing", s.Events(c, n))
			for _, m := range c.All() {
				s.Retry(m)
			}
			check("the retry", s.Events(c, 2*n)[n:])
			for _, m := range c.All()[n:] {
				s.Retry(m)
			}
			check("the dead letter", s.Letters(n))
			s.OK("dead", "replay", "--yes")
			check("the replay", s.Events(c, 3*n)[2*n:])
			s.NoRequests()
			s.Settled()
			p.Stop()
		})
	}
}

// An event does not claim to have been published later than the stream has it, though Redis is slow to answer.
func TestEventTimeIsNotAheadOfTheStream(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	proxy := testenv.NewProxy(t, s.Redis.Addr())
	s.Env["TIMERD_REDIS_URL"] = "redis://" + proxy.Addr() + "/0"
	s.Start()
	c := s.Collect()
	proxy.Delay(50 * time.Millisecond)
	const n = 50
	setAll(s, "a:b:c:", n, func(i int) int { return 500 + i*20 })
	for i, e := range s.Events(c, n) {
		if stored := c.All()[i].Time; e.Time.After(stored) {
			t.Errorf("%s: published at %v, stored at %v", e.ID, e.Time, stored)
		}
	}
}

// With TIMERD_LOG_FORMAT=json every line is JSON, and durations have their unit.
func TestLogIsJSON(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	s.Env["TIMERD_LOG_FORMAT"], s.Env["TIMERD_LOG_LEVEL"] = "json", "debug"
	s.Env["TIMERD_LAESE"] = "1s" // unknown: a warning
	durations := 0
	check := func(p *system.Daemon, least int) {
		t.Helper()
		lines := 0
		for line := range strings.Lines(p.Log.String()) {
			lines++
			var entry map[string]any
			if err := json.Unmarshal([]byte(line), &entry); err != nil {
				t.Errorf("%v: %s", err, line)
				continue
			}
			for _, key := range []string{"after", "delay", "limit"} {
				value, there := entry[key]
				if !there {
					continue
				}
				text, _ := value.(string)
				if _, err := time.ParseDuration(text); err != nil {
					t.Errorf("%s: %v", line, err)
				}
				durations++
			}
		}
		if lines < least {
			t.Errorf("%d lines:\n%s", lines, p.Log)
		}
	}
	p := s.Start("TIMERD_NATS_URL=embedded://"+testenv.FreeAddr(t), "TIMERD_DATA_DIR="+t.TempDir())
	s.Redis.Stop()
	p.AwaitReady(false)
	s.Redis.Start()
	p.AwaitReady(true)
	p.Stop()
	check(p, 5)
	if durations == 0 || !strings.Contains(p.Log.String(), "did you mean TIMERD_LEASE?") {
		t.Errorf("%d durations; the log:\n%s", durations, p.Log)
	}
	for _, setting := range []string{"TIMERD_LEASE=1h", "TIMERD_HTTP_ADDR=" + s.NATS.Addr()} {
		p := s.Launch(setting)
		p.Ends()
		check(p, 1)
	}
}
