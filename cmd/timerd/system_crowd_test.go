package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/redisserver"
	"github.com/timerd-io/timerd/internal/testenv"
)

// setCrowd sets n timers of an app for one time, and returns what is to fire.
func (s *system) setCrowd(app string, n int, at int64) (want []string) {
	s.t.Helper()
	if _, err := s.rdb.Pipelined(s.t.Context(), func(pipe redis.Pipeliner) error {
		for i := range n {
			key := fmt.Sprintf("%s:b:c:%d", app, i)
			pipe.FCall(s.t.Context(), "timer_set", []string{key}, "p", "PXAT", at)
			want = append(want, key+"=p")
		}
		return nil
	}); err != nil {
		s.t.Fatal(err)
	}
	return want
}

// onTime checks that the timers of an app fired in time, and tells how late they were. The bound is a loose one: what
// matters is that they did not wait for others.
func (s *system) onTime(all []event.Event, app string) {
	s.t.Helper()
	var late []time.Duration
	for _, e := range all {
		if e.Key.App == app {
			late = append(late, e.Time.Sub(e.Due))
		}
	}
	slices.Sort(late)
	s.t.Logf("%d timers of %s: p50 %v, p99 %v late", len(late), app, late[len(late)/2], late[len(late)*99/100])
	if worst := late[len(late)-1]; worst > 4*time.Second {
		s.t.Errorf("a timer fired %v late", worst)
	}
}

// With an ACL that names some apps, the timers of another one wait for nobody's harm: those of the others fire on time,
// plain keys are adopted, retries are not lost. The app's own fire too, each once.
func TestKeysBeyondTimerdsRights(t *testing.T) {
	t.Parallel()
	const bad, good = 2000, 200
	acl := strings.Replace(leastPrivileged(t), "user timerd on >secret ~* ", "user timerd on >secret ~good:* ~timerd:* ", 1)
	s := newSystem(t, redisserver.ACL(acl))
	s.env["TIMERD_REDIS_URL"] = s.redis.UserURL("timerd", "secret", 0)
	s.env["TIMERD_RETRY"] = "*=100ms"
	p := s.start()
	c := s.collect()
	due := s.now() + 2000
	want := slices.Concat(s.setCrowd("bad", bad, due), s.setCrowd("good", good, due+500))
	s.do("SET", "bad:b:plain:1", "p", "PXAT", due+500)
	want = append(want, "bad:b:plain:1=<missing>") // its value is beyond timerd's rights
	s.do("SET", "good:b:plain:1", "p", "PXAT", due+500)
	s.adopted("good:b:plain:1")
	want = append(want, "good:b:plain:1=p")
	all := s.expect(c, want...)
	s.onTime(all, "good")

	fired := c.All()
	i := slices.IndexFunc(fired, func(m testenv.Message) bool { return strings.HasSuffix(m.Subject, ".bad.b.c") })
	s.retry(fired[i])
	s.noRequests()
	again := c.Wait(len(want)+1, patience)
	if m := again[len(want)]; m.Subject != fired[i].Subject || !strings.HasSuffix(m.ID(), ".2") {
		t.Errorf("the retry fired as %s on %s", m.ID(), m.Subject)
	}
	s.settled()
	if _, body, err := p.get("/metrics"); err != nil || strings.Contains(body, `timerd_set_aside_total{reason="rights"} 0`) {
		t.Errorf("nothing was counted as set aside: %v", err)
	}
	if log := p.log.String(); strings.Count(log, "timers of this app are set aside") != 1 || !strings.Contains(log, "key=bad:") {
		t.Errorf("the log tells of it not once:\n%s", log)
	}
}

// Timers whose subject NATS refuses wait for the right, however many they are; those of others fire on time beside them.
func TestSubjectsThatNATSRefuses(t *testing.T) {
	t.Parallel()
	const bad, good = 5000, 300
	rights := &server.Permissions{Publish: &server.SubjectPermission{Deny: []string{"timers.fired.bad.>"}}}
	s := newSystem(t)
	s.nats = testenv.NATS(t, func(o *server.Options) {
		o.Users = []*server.User{{Username: "admin", Password: "a"}, {Username: "timerd", Password: "t", Permissions: rights}}
		o.NoAuthUser = "admin"
	})
	s.js = s.nats.JetStream()
	s.env["TIMERD_NATS_URL"] = "nats://timerd:t@" + s.nats.Addr()
	p := s.start()
	c := s.collect()
	want := s.setCrowd("good", 1, s.now()+1000)
	s.expect(c, want...)
	due := s.now() + 1000
	refused := s.setCrowd("bad", bad, due)
	for i := range 3 {
		want = append(want, s.setCrowd(fmt.Sprint("good", i), good/3, due+int64(i)*1000)...)
	}
	all := s.expect(c, want...)
	for i := range 3 {
		s.onTime(all, fmt.Sprint("good", i))
	}
	if _, body, err := p.get("/metrics"); err != nil || strings.Contains(body, `timerd_set_aside_total{reason="refused"} 0`) {
		t.Errorf("nothing was counted as set aside: %v", err)
	}
	rights.Publish.Deny = nil
	s.nats.Restart()
	s.expect(c, slices.Concat(want, refused)...)
	s.settled()
	p.stop()
}

// Three kinds of bad timers at once: with keys beyond timerd's rights, with a subject that NATS refuses, and retries that are
// used up while there is no room for dead letters. Those of others fire on time, and when the causes are mended, so do these.
func TestThreeKindsOfBadnessAtOnce(t *testing.T) {
	t.Parallel()
	const bad, good = 1700, 300
	acl := strings.Replace(leastPrivileged(t), "user timerd on >secret ~* ", "user timerd on >secret ~good*:* ~refused:* ~used:* ~timerd:* ", 1)
	s := newSystem(t, redisserver.ACL(acl))
	rights := &server.Permissions{Publish: &server.SubjectPermission{Deny: []string{"timers.fired.refused.>"}}}
	s.nats = testenv.NATS(t, func(o *server.Options) {
		o.Users = []*server.User{{Username: "admin", Password: "a"}, {Username: "timerd", Password: "t", Permissions: rights}}
		o.NoAuthUser = "admin"
	})
	s.js = s.nats.JetStream()
	s.env["TIMERD_REDIS_URL"] = s.redis.UserURL("timerd", "secret", 0)
	s.env["TIMERD_NATS_URL"] = "nats://timerd:t@" + s.nats.Addr()
	s.env["TIMERD_RETRY"] = "used=exp(1s,1,1s,0); *=200ms"
	p := s.start()
	c := s.collect()
	want := s.setCrowd("good", 1, s.now()+1000)
	s.expect(c, want...)
	s.ask("used:b:c:first")
	s.letters(1)
	s.limitDead(1)

	due := s.now() + 5000
	waiting := slices.Concat(s.setCrowd("denied", bad, due), s.setCrowd("refused", bad, due))
	for i := range 3 {
		want = append(want, s.setCrowd(fmt.Sprint("good", i), good/3, due+int64(i)*1000)...)
	}
	s.ask(keysOf("used:b:c:", bad)...)
	retried := keysOf("goodretry:b:c:", good)
	s.ask(retried...)
	want = append(want, fireAll(retried)...)
	all := s.expect(c, slices.Concat(want, waiting[:bad])...)
	for i := range 3 {
		s.onTime(all, fmt.Sprint("good", i))
	}

	s.do("ACL", "SETUSER", "timerd", "~*")
	rights.Publish.Deny = nil
	s.nats.Restart()
	s.limitDead(-1)
	s.expect(c, slices.Concat(want, waiting)...)
	s.letters(bad + 1)
	s.noRequests()
	s.settled()
	p.awaitReady(true)
	p.stop()
}
