package main

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/timerd-io/timerd/internal/redisserver"
	"github.com/timerd-io/timerd/internal/testenv"
)

// What is set aside shows in /readyz, which stays 200, in the metrics, in doctor with what to do, and in ls; and nowhere
// once the causes are gone.
func TestSetAsideIsShown(t *testing.T) {
	acl := strings.Replace(leastPrivileged(t), "user timerd on >secret ~* ", "user timerd on >secret ~good:* ~refused:* ~timerd:* ", 1)
	rights := &server.Permissions{Publish: &server.SubjectPermission{Deny: []string{"timers.fired.refused.>"}}}
	s := newSystem(t, redisserver.ACL(acl))
	s.nats = testenv.NATS(t, func(o *server.Options) {
		o.Users = []*server.User{{Username: "admin", Password: "a"}, {Username: "timerd", Password: "t", Permissions: rights}}
		o.NoAuthUser = "admin"
	})
	s.js = s.nats.JetStream()
	s.env["TIMERD_NATS_URL"] = "nats://timerd:t@" + s.nats.Addr()
	s.env["TIMERD_REDIS_URL"] = s.redis.UserURL("timerd", "secret", 0)
	p := s.start()
	c := s.collect()
	// The key that timerd may not read has no expired event that would fire it: it lives on.
	due := s.now() + 1000
	good, refused := s.setCrowd("good", 10, due), s.setCrowd("refused", 20, due+500)
	s.do("FCALL", "timer_set", 1, "secret:b:c:1", "hidden", "PXAT", due)
	s.do("PERSIST", "secret:b:c:1")
	s.expect(c, good...)
	p.says(http.StatusOK, "redis: ok", "set aside: 1 timers whose keys timerd may not read, 20 timers whose subjects NATS refuses;")
	if _, body, err := p.get("/metrics"); err != nil || !strings.Contains(body, `timerd_set_aside_timers{reason="refused"} 20`) ||
		!strings.Contains(body, `timerd_set_aside_timers{reason="rights"} 1`) {
		t.Errorf("the metrics do not count them: %v", err)
	}

	testenv.SetVariables(t, s.env)
	_, out, _ := timerd(t, "", "doctor")
	for _, line := range []string{
		"warn  set aside         1 timers wait because timerd may not read their keys, such as secret:b:c:1\n                        fix: ACL SETUSER timerd ~secret:*:*:*;",
		"warn  set aside         20 timers wait because NATS refuses their subjects, such as that of refused:b:c:",
		"fix: let timerd's NATS user publish to timers.fired.refused.b.c,",
	} {
		if !strings.Contains(out, line) {
			t.Errorf("doctor does not say %q:\n%s", line, out)
		}
	}
	_, out, _ = timerd(t, "", "status")
	out = strings.Join(strings.Fields(out), " ")
	for _, text := range []string{
		"warn 1 timer is set aside because timerd may not read their keys, such as secret:b:c:1 fix: timerd doctor says what is missing",
		"warn 20 timers are set aside because NATS refuses their subjects, such as refused:b:c:",
	} {
		if !strings.Contains(out, text) {
			t.Errorf("status does not say %q:\n%s", text, out)
		}
	}
	if out := ok(t, "ls", "secret"); !strings.Contains(out, "set aside: rights  owed   1        secret:b:c:1  hidden") {
		t.Errorf("ls:\n%s", out)
	}
	if out := ok(t, "ls", "--json"); strings.Count(out, `"setaside":"refused"`) != 20 || strings.Count(out, `"setaside":"rights"`) != 1 {
		t.Errorf("ls --json:\n%s", out)
	}

	s.do("ACL", "SETUSER", "timerd", "~*") // then the PERSIST counts
	rights.Publish.Deny = nil
	s.nats.Restart()
	s.expect(c, slices.Concat(good, refused)...)
	s.settled()
	testenv.Eventually(t, patience, func() bool {
		status, body, err := p.get("/readyz")
		return err == nil && status == http.StatusOK && !strings.Contains(body, "set aside")
	}, "nothing to be set aside")
	if _, out, errs := timerd(t, "", "ls"); out != "" || !strings.Contains(errs, "0 timers") {
		t.Errorf("ls:\n%s%s", out, errs)
	}
	p.stop()
}
