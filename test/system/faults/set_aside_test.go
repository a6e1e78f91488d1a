package faults_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/timerd-io/timerd/internal/devserver"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/test/system"
)

// Timers set aside show in /readyz, which stays 200, in the metrics, in doctor with the fix, and in ls; and nowhere
// once the causes are gone.
func TestSetAsideIsShown(t *testing.T) {
	t.Parallel()
	acl := strings.Replace(system.LeastPrivileged(t), "user timerd on >secret ~* ",
		"user timerd on >secret ~good:* ~refused:* ~timerd:* ", 1)
	rights := &server.Permissions{Publish: &server.SubjectPermission{Deny: []string{"timers.fired.refused.>"}}}
	s := system.New(t, devserver.ACL(acl))
	s.NATS = testenv.NATS(t, func(o *server.Options) {
		o.Users = []*server.User{{Username: "admin", Password: "a"},
			{Username: "timerd", Password: "t", Permissions: rights}}
		o.NoAuthUser = "admin"
	})
	s.JS = s.NATS.JetStream()
	s.Env["TIMERD_NATS_URL"] = "nats://timerd:t@" + s.NATS.Addr()
	s.Env["TIMERD_REDIS_URL"] = s.Redis.UserURL("timerd", "secret", 0)
	p := s.Start()
	c := s.Collect()
	// The key that timerd may not read has no expired event that would fire it: it lives on.
	good, refused := setCrowd(s, "good", 10, 1000), setCrowd(s, "refused", 20, 1500)
	s.Do("FCALL", "timer_set", 1, "secret:b:c:1", "hidden", "PX", 1000)
	s.Do("PERSIST", "secret:b:c:1")
	s.Expect(c, good...)
	p.ReadySays(http.StatusOK, "redis: ok",
		"set aside: 1 timers whose keys timerd may not read, 20 timers whose subjects NATS refuses;")
	if _, body, err := p.Get("/metrics"); err != nil || !strings.Contains(body,
		`timerd_set_aside_timers{reason="refused"} 20`) ||
		!strings.Contains(body, `timerd_set_aside_timers{reason="rights"} 1`) {
		t.Errorf("the metrics do not count them: %v", err)
	}

	_, out, _ := s.Run("", "doctor")
	for _, line := range []string{
		"warn  set aside         1 timer waits because timerd may not read their keys, such as secret:b:c:1\n        " +
			"                fix: grant it in the ACL file too",
		" ACL SETUSER timerd '~secret:*:*:*'",
		"warn  set aside         20 timers wait because NATS refuses their subjects, such as that of refused:b:c:",
		"fix: let timerd's NATS user publish to timers.fired.refused.b.c,",
	} {
		if !strings.Contains(out, line) {
			t.Errorf("doctor does not say %q:\n%s", line, out)
		}
	}
	_, out, _ = s.Run("", "status")
	out = strings.Join(strings.Fields(out), " ")
	for _, text := range []string{
		"warn 1 timer waits because timerd may not read their keys, such as secret:b:c:1 fix: grant it in the ACL " +
			"file too",
		" ACL SETUSER timerd '~secret:*:*:*'",
		"warn 20 timers wait because NATS refuses their subjects, such as that of refused:b:c:",
	} {
		if !strings.Contains(out, text) {
			t.Errorf("status does not say %q:\n%s", text, out)
		}
	}
	if out := s.OK("ls", "secret"); !strings.Contains(out, "set aside: rights  owed   1        secret:b:c:1  hidden") {
		t.Errorf("ls:\n%s", out)
	}
	if out := s.OK("ls", "--json"); strings.Count(out, `"setaside":"refused"`) != 20 ||
		strings.Count(out, `"setaside":"rights"`) != 1 {
		t.Errorf("ls --json:\n%s", out)
	}

	s.Do("ACL", "SETUSER", "timerd", "~*") // then the PERSIST counts
	rights.Publish.Deny = nil
	s.NATS.Restart()
	s.Expect(c, slices.Concat(good, refused)...)
	s.Settled()
	testenv.Eventually(t, system.Patience, func() bool {
		status, body, err := p.Get("/readyz")
		return err == nil && status == http.StatusOK && !strings.Contains(body, "set aside")
	}, "nothing to be set aside")
	if _, out, errs := s.Run("", "ls"); out != "0 timers\n" {
		t.Errorf("ls:\n%s%s", out, errs)
	}
	p.Stop()
}
