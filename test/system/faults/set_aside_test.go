package faults_test

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/redis/go-redis/v9"

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
	if _, err := s.RDB.TxPipelined(t.Context(), func(pipe redis.Pipeliner) error {
		pipe.FCall(t.Context(), "timer_set", []string{"secret:b:c:1"}, "hidden", "PX", 1000)
		pipe.Persist(t.Context(), "secret:b:c:1")
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	s.Do("FCALL", "timer_set", 1, "good:guarded:c:1", "g", "PX", 1000, "UNLESS", "secret:paid")
	s.Expect(c, good...)
	p.ReadySays(http.StatusOK, "redis: ok",
		"set aside: 1 timers whose keys timerd may not read, 20 timers whose subjects NATS refuses, "+
			"1 timers whose guards timerd may not read;")
	p.Measures(true, `timerd_set_aside_timers{reason="refused"} 20`)
	p.Measures(true, `timerd_set_aside_timers{reason="guard"} 1`)
	p.Measures(true, `timerd_set_aside_timers{reason="rights"} 1`)
	p.Measures(false, `timerd_set_aside_total{reason="guard"} 0`)

	doctor := func() string { _, out, _ := s.Run("", "doctor"); return out }
	prints(t, doctor,
		"warn  set aside         1 timer waits because timerd may not read their keys, such as secret:b:c:1\n        "+
			"                fix: grant it in the ACL file too",
		" ACL SETUSER timerd '~secret:*:*:*'",
		"warn  set aside         20 timers wait because NATS refuses their subjects, such as that of refused:b:c:",
		"fix: let timerd's NATS user publish to timers.fired.refused.b.c,",
		"warn  set aside         1 timer waits because timerd may not read their guards, such as secret:paid of "+
			"good:guarded:c:1\n",
		" ACL SETUSER timerd '~secret:*'")
	status := func() string { _, out, _ := s.Run("", "status"); return strings.Join(strings.Fields(out), " ") }
	prints(t, status,
		"warn 1 timer waits because timerd may not read their keys, such as secret:b:c:1 fix: grant it in the ACL "+
			"file too",
		" ACL SETUSER timerd '~secret:*:*:*'",
		"warn 20 timers wait because NATS refuses their subjects, such as that of refused:b:c:")
	prints(t, func() string { return s.OK("ls", "secret") },
		"set aside: rights  owed   1        secret:b:c:1  hidden")
	testenv.Eventually(t, system.Patience, func() error {
		if out := s.OK("ls", "--json"); strings.Count(out, `"setaside":"refused"`) != 20 ||
			strings.Count(out, `"setaside":"guard"`) != 1 || strings.Count(out, `"setaside":"rights"`) != 1 {
			return errors.New(out)
		}
		return nil
	}, "ls --json")

	s.Do("ACL", "SETUSER", "timerd", "~*") // then the PERSIST counts
	rights.Publish.Deny = nil
	s.NATS.Restart()
	s.Expect(c, append(slices.Concat(good, refused), "good:guarded:c:1=g")...)
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

// prints waits until a command prints texts: a timer that is tried again is not set aside meanwhile.
func prints(t *testing.T, run func() string, texts ...string) {
	t.Helper()
	testenv.Eventually(t, system.Patience, func() error {
		out := run()
		for _, text := range texts {
			if !strings.Contains(out, text) {
				return fmt.Errorf("no %q in:\n%s", text, out)
			}
		}
		return nil
	}, "the output of a command")
}
