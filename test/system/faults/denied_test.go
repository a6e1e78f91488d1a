package faults_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/devserver"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/test/system"
)

// setCrowd sets n timers of an app that are all due at the same time, and returns the expected firings.
func setCrowd(s *system.System, app string, n int, in int64) (want []string) {
	s.T.Helper()
	if _, err := s.RDB.Pipelined(s.T.Context(), func(pipe redis.Pipeliner) error {
		for i := range n {
			key := fmt.Sprintf("%s:b:c:%d", app, i)
			pipe.FCall(s.T.Context(), "timer_set", []string{key}, "p", "PX", in)
			want = append(want, key+"=p")
		}
		return nil
	}); err != nil {
		s.T.Fatal(err)
	}
	return want
}

// With an ACL that names some apps, the timers of another one wait for nobody's harm: those of the others fire on time,
// plain keys are adopted, retries are not lost. The app's own fire too, each once.
func TestKeysBeyondTimerdsRights(t *testing.T) {
	t.Parallel()
	const bad, good = 1000, 200
	acl := strings.Replace(system.LeastPrivileged(t), "user timerd on >secret ~* ",
		"user timerd on >secret ~good:* ~timerd:* ", 1)
	s := system.New(t, devserver.ACL(acl))
	s.Env["TIMERD_REDIS_URL"] = s.Redis.UserURL("timerd", "secret", 0)
	s.Env["TIMERD_RETRY"] = "*=100ms"
	p := s.Start()
	c := s.Collect()
	watch := testenv.StartStopwatch()
	want := slices.Concat(setCrowd(s, "bad", bad, 2000), setCrowd(s, "good", good, 2500))
	s.Do("SET", "bad:b:plain:1", "p", "PX", 2500)
	want = append(want, "bad:b:plain:1=<missing>") // its value is beyond timerd's rights
	s.Do("SET", "good:b:plain:1", "p", "PX", 4000)
	s.Adopted("good:b:plain:1")
	want = append(want, "good:b:plain:1=p")
	all := s.Expect(c, want...)
	s.OnTime(watch, all, "good")

	fired := c.All()
	i := slices.IndexFunc(fired, func(m testenv.Message) bool { return strings.HasSuffix(m.Subject, ".bad.b.c") })
	s.Retry(fired[i])
	s.NoRequests()
	again := c.Wait(len(want)+1, system.Patience)
	if m := again[len(want)]; m.Subject != fired[i].Subject || !strings.HasSuffix(m.ID(), ".2") {
		t.Errorf("the retry fired as %s on %s", m.ID(), m.Subject)
	}
	s.Settled()
	if _, body, err := p.Get("/metrics"); err != nil || strings.Contains(body,
		`timerd_set_aside_total{reason="rights"} 0`) {
		t.Errorf("nothing was counted as set aside: %v", err)
	}
	if log := p.Log.String(); strings.Count(log, "timers of this app are set aside") != 1 ||
		!strings.Contains(log, "key=bad:") {
		t.Errorf("the log tells of it not once:\n%s", log)
	}
}

// Timers whose subject NATS refuses wait for the right, however many they are; those of others fire on time beside
// them.
func TestSubjectsThatNATSRefuses(t *testing.T) {
	t.Parallel()
	const bad, good = 5000, 300
	rights := &server.Permissions{Publish: &server.SubjectPermission{Deny: []string{"timers.fired.bad.>"}}}
	s := system.New(t)
	s.NATS = testenv.NATS(t, func(o *server.Options) {
		o.Users = []*server.User{{Username: "admin", Password: "a"},
			{Username: "timerd", Password: "t", Permissions: rights}}
		o.NoAuthUser = "admin"
	})
	s.JS = s.NATS.JetStream()
	s.Env["TIMERD_NATS_URL"] = "nats://timerd:t@" + s.NATS.Addr()
	p := s.Start()
	c := s.Collect()
	want := setCrowd(s, "good", 1, 1000)
	s.Expect(c, want...)
	watch := testenv.StartStopwatch()
	refused := setCrowd(s, "bad", bad, 1000) // more than are on their way at once
	for i := range 3 {
		want = append(want, setCrowd(s, fmt.Sprint("good", i), good/3, int64(i+1)*1000)...)
	}
	all := s.Expect(c, want...)
	for i := range 3 {
		s.OnTime(watch, all, fmt.Sprint("good", i))
	}
	if _, body, err := p.Get("/metrics"); err != nil || strings.Contains(body,
		`timerd_set_aside_total{reason="refused"} 0`) {
		t.Errorf("nothing was counted as set aside: %v", err)
	}
	rights.Publish.Deny = nil
	s.NATS.Restart()
	s.Expect(c, slices.Concat(want, refused)...)
	s.Settled()
	p.Stop()
}

// Three kinds of bad timers at once: with keys beyond timerd's rights, with a subject that NATS refuses, and retries
// that are used up while there is no room for dead letters. Those of others fire on time, and when the causes are
// mended, so do these.
func TestDeniedKeysSubjectsAndLettersAtOnce(t *testing.T) {
	t.Parallel()
	const bad, good = 1000, 300
	acl := strings.Replace(system.LeastPrivileged(t), "user timerd on >secret ~* ",
		"user timerd on >secret ~good*:* ~refused:* ~used:* ~timerd:* ", 1)
	s := system.New(t, devserver.ACL(acl))
	rights := &server.Permissions{Publish: &server.SubjectPermission{Deny: []string{"timers.fired.refused.>"}}}
	s.NATS = testenv.NATS(t, func(o *server.Options) {
		o.Users = []*server.User{{Username: "admin", Password: "a"},
			{Username: "timerd", Password: "t", Permissions: rights}}
		o.NoAuthUser = "admin"
	})
	s.JS = s.NATS.JetStream()
	s.Env["TIMERD_REDIS_URL"] = s.Redis.UserURL("timerd", "secret", 0)
	s.Env["TIMERD_NATS_URL"] = "nats://timerd:t@" + s.NATS.Addr()
	s.Env["TIMERD_RETRY"] = "used=exp(1s,1,1s,0); *=200ms"
	p := s.Start()
	c := s.Collect()
	want := setCrowd(s, "good", 1, 1000)
	s.Expect(c, want...)
	s.Ask("used:b:c:first")
	s.Letters(1)
	s.LimitDead(1)

	watch := testenv.StartStopwatch()
	waiting := slices.Concat(setCrowd(s, "denied", bad, 3000), setCrowd(s, "refused", bad, 3000))
	for i := range 3 {
		want = append(want, setCrowd(s, fmt.Sprint("good", i), good/3, int64(i+3)*1000)...)
	}
	s.Ask(system.KeysOf("used:b:c:", bad)...)
	retried := system.KeysOf("goodretry:b:c:", good)
	s.Ask(retried...)
	want = append(want, system.FireAll(retried)...)
	all := s.Expect(c, slices.Concat(want, waiting[:bad])...)
	for i := range 3 {
		s.OnTime(watch, all, fmt.Sprint("good", i))
	}

	s.Do("ACL", "SETUSER", "timerd", "~*")
	rights.Publish.Deny = nil
	s.NATS.Restart()
	s.LimitDead(-1)
	s.Expect(c, slices.Concat(want, waiting)...)
	s.Letters(bad + 1)
	s.NoRequests()
	s.Settled()
	p.AwaitReady(true)
	p.Stop()
}
