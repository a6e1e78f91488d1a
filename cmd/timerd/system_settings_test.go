package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/testenv"
)

// timerd works with a Redis that lets nobody in without a certificate, by plain keys as by timer_set.
func TestRedisThatDemandsCertificates(t *testing.T) {
	t.Parallel()
	authority := testenv.NewAuthority(t)
	addr, opts := authority.RedisTLS(authority.Issue("redis", "127.0.0.1"))
	s := newSystem(t, opts...)
	cert, key := authority.Issue("timerd")
	s.env["TIMERD_REDIS_URL"] = "rediss://" + addr + "/0"
	s.env["TIMERD_REDIS_CA"], s.env["TIMERD_REDIS_CERT"], s.env["TIMERD_REDIS_KEY"] = authority.File, cert, key
	p := s.start()
	c := s.collect()
	s.do("FCALL", "timer_set", 1, "a:b:c:explicit", "1", "PX", 300)
	s.do("SET", "a:b:c:plain", "2", "PX", 2000)
	s.adopted("a:b:c:plain")
	s.expect(c, "a:b:c:explicit=1", "a:b:c:plain=2")
	s.settled()
	p.stop()
}

// The stream of firings is made as the settings say, and status shows how.
func TestStreamsAreMadeByTheSettings(t *testing.T) {
	s := newSystem(t)
	p := s.start("TIMERD_STREAM_MAX_AGE=24h", "TIMERD_STREAM_MAX_BYTES=5000000")
	testenv.SetVariables(t, s.env)
	out := strings.Join(strings.Fields(statusSays(t, exitOK, "ok: nothing is wrong")), " ")
	if !strings.Contains(out, " TIMERS 0 0 B 1d 5.0 MB 1 of 1 TIMERS_RETRY 0 0 B ever no limit 1 of 1 TIMERS_DEAD 0 0 B ever no limit 1 of 1") {
		t.Errorf("status:\n%s", out)
	}
	p.stop()
}

// An attempt in a payload that the policy does not allow is no retry count: it uses up nothing.
func TestAttemptsOfPayloads(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.env["TIMERD_RETRY"] = "*=100ms,100ms"
	p := s.start()
	c := s.collect()
	is := func(e event.Event, attempt int) {
		t.Helper()
		if e.Attempt != attempt || e.MaxAttempts != 3 {
			t.Errorf("%s of %s fired as attempt %d/%d, want %d/3", e.Key, e.Data, e.Attempt, e.MaxAttempts, attempt)
		}
	}
	s.do("FCALL", "timer_set", 1, "a:b:c:explicit", `{"attempt":20}`, "PX", 200)
	s.do("SET", "a:b:c:plain", `{"attempt":20}`, "PX", 2000)
	s.do("FCALL", "timer_set", 1, "a:b:c:counts", `{"attempt":3}`, "PX", 2100)
	s.adopted("a:b:c:plain")
	for _, e := range s.events(c, 3) {
		want := 1
		if e.Key.ID == "counts" {
			want = 3
		}
		is(e, want)
	}
	s.retry(c.All()[0])
	is(s.events(c, 4)[3], 2)
	s.noRequests()
	p.stop()

	s.start("TIMERD_PAYLOAD_ATTEMPT=off")
	s.do("FCALL", "timer_set", 1, "a:b:c:off", `{"attempt":3}`, "PX", 100)
	is(s.events(c, 5)[4], 1)
	s.settled()
}

// However payloads travel, retries, dead letters and replays bring the same bytes, in the same form.
func TestFormsOfPayloads(t *testing.T) {
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
			s := newSystem(t)
			s.env["TIMERD_RETRY"] = "*=100ms"
			s.env["TIMERD_EVENT_DATA"] = test.setting
			p := s.start()
			c := s.collect()
			check := func(what string, all []event.Event) {
				t.Helper()
				for _, e := range all {
					var i int
					if _, err := fmt.Sscan(e.Key.ID, &i); err != nil {
						t.Fatal(err)
					}
					if string(e.Data) != payloads[i] || e.Data == nil || e.ContentType != test.form(payloads[i]) {
						t.Errorf("%s brings %q as %s, want %q as %s", what, e.Data, e.ContentType, payloads[i], test.form(payloads[i]))
					}
				}
			}
			n := len(payloads)
			for i, payload := range payloads {
				s.do("FCALL", "timer_set", 1, fmt.Sprintf("a:b:c:%d", i), payload, "PX", 100)
			}
			check("the firing", s.events(c, n))
			for _, m := range c.All() {
				s.retry(m)
			}
			check("the retry", s.events(c, 2*n)[n:])
			for _, m := range c.All()[n:] {
				s.retry(m)
			}
			check("the dead letter", s.letters(n))
			testenv.SetVariables(t, s.env)
			ok(t, "dead", "replay", "--yes")
			check("the replay", s.events(c, 3*n)[2*n:])
			s.noRequests()
			s.settled()
			p.stop()
		})
	}
}

// An event does not claim to have been published later than the stream has it, though Redis is slow to answer.
func TestEventTimeIsNotAheadOfTheStream(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	proxy := testenv.NewProxy(t, s.redis.Addr())
	s.env["TIMERD_REDIS_URL"] = "redis://" + proxy.Addr() + "/0"
	s.start()
	c := s.collect()
	proxy.Delay(50 * time.Millisecond)
	const n = 50
	at := s.now() + 500
	for i := range n {
		s.do("FCALL", "timer_set", 1, fmt.Sprintf("a:b:c:%d", i), "x", "PXAT", at+int64(i)*20)
	}
	for i, e := range s.events(c, n) {
		if stored := c.All()[i].Time; e.Time.After(stored) {
			t.Errorf("%s: published at %v, stored at %v", e.ID, e.Time, stored)
		}
	}
}

// With TIMERD_LOG_FORMAT=json every line is JSON, and durations have their unit.
func TestLogIsJSON(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.env["TIMERD_LOG_FORMAT"], s.env["TIMERD_LOG_LEVEL"] = "json", "debug"
	s.env["TIMERD_LAESE"] = "1s" // unknown: a warning
	durations := 0
	check := func(p *daemon, least int) {
		t.Helper()
		lines := 0
		for line := range strings.Lines(p.log.String()) {
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
			t.Errorf("%d lines:\n%s", lines, p.log)
		}
	}
	p := s.start("TIMERD_NATS_URL=embedded://"+freeAddr(t), "TIMERD_DATA_DIR="+t.TempDir())
	s.redis.Stop()
	p.awaitReady(false)
	s.redis.Start()
	p.awaitReady(true)
	p.stop()
	check(p, 5)
	if durations == 0 || !strings.Contains(p.log.String(), "did you mean TIMERD_LEASE?") {
		t.Errorf("%d durations; the log:\n%s", durations, p.log)
	}
	for _, setting := range []string{"TIMERD_LEASE=1h", "TIMERD_HTTP_ADDR=" + s.nats.Addr()} {
		p := s.launch(setting)
		p.ends()
		check(p, 1)
	}
}
