package faults_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/timerd-io/timerd/internal/devserver"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/test/system"
)

func TestServeRefusesAtOnce(t *testing.T) {
	t.Parallel()
	const atOnce = 15 * time.Second // servers that are away are tried for 30 s
	s := system.New(t)
	acl := testenv.Redis(t, devserver.ACL("user default on >"+system.Secret+" ~* &* +@all\n"))
	cluster := testenv.Redis(t, devserver.Directive("cluster-enabled", "yes"))
	authority := testenv.NewAuthority(t)
	secure, opts := authority.RedisTLS(authority.Issue("redis", "127.0.0.1"))
	testenv.Redis(t, opts...)
	unable := testenv.Redis(t, devserver.Directive("rename-command", "FUNCTION", ""))
	bare := testenv.Redis(t, devserver.ACL("user default off\nuser app on nopass ~* &* +@all -@scripting -info\n"))
	off := testenv.NATS(t, func(o *server.Options) { o.JetStream = false })
	for _, test := range []struct {
		setting, want string
		code          int
	}{
		{"TIMERD_LEASE=1h", "TIMERD_LEASE", 2},
		{"TIMERD_NAMESPACES=", "TIMERD_NAMESPACES", 2},
		{"TIMERD_REDIS_URL=redis://:wrong" + system.Secret + "@" + acl.Addr(),
			"WRONGPASS invalid username-password pair or user is disabled.; to fix it: correct the user, the password",
			1},
		{"TIMERD_REDIS_URL=" + cluster.URL(0), "set TIMERD_REDIS_MODE=cluster", 1},
		{"TIMERD_REDIS_MODE=cluster", "set TIMERD_REDIS_MODE=standalone", 1},
		{"TIMERD_REDIS_URL=rediss://" + secure, "set TIMERD_REDIS_CA", 1},
		{"TIMERD_REDIS_URL=redis://" + secure, "write rediss:// in TIMERD_REDIS_URL", 1},
		{"TIMERD_REDIS_CA=" + authority.File, "want rediss://", 2},
		{"TIMERD_NATS_URL=" + off.URL(), "it runs without JetStream; to fix it: add a jetstream block", 1},
		{"TIMERD_NATS_URL=" + testenv.OldNATS(t, s.NATS, "2.9.25"), "nats-server 2.9.25 is too old; to fix it: upgrade",
			1},
		{"TIMERD_STREAM_REPLICAS=3", "cannot be made with 3 replicas", 1},
		{"TIMERD_REDIS_URL=" + unable.URL(0), "has no functions; to fix it: use Redis 7.0 or later, or Valkey", 1},
		{"TIMERD_REDIS_URL=" + bare.UserURL("app", "any", 0),
			"user app lacks +eval +evalsha +fcall +fcall_ro +function|delete +function|list +function|load +info " +
				"+script|load; to fix it: ", 1},
		{"TIMERD_HTTP_ADDR=" + s.NATS.Addr(), "TIMERD_HTTP_ADDR", 1},
		{"TIMERD_CONSOLE_ADDR=" + s.NATS.Addr(), "TIMERD_CONSOLE_ADDR", 1},
		{"TIMERD_CONSOLE_ADDR=:8081", "TIMERD_CONSOLE_PASSWORD", 2},
		{"TIMERD_NATS_URL=embedded", "TIMERD_DATA_DIR", 2},
		{"TIMERD_NATS_URL=embedded://0.0.0.0:4222", "want embedded://user:password@0.0.0.0:4222", 2},
	} {
		began := time.Now()
		p := s.Launch(test.setting)
		if code := p.Ends(); code != test.code || !strings.Contains(p.Log.String(), test.want) {
			t.Errorf("%s: exit code %d, want %d and %q in\n%s", test.setting, code, test.code, test.want, p.Log)
		}
		if took := time.Since(began); took > atOnce {
			t.Errorf("%s: it took %v", test.setting, took)
		}
		testenv.Lacks(t, p.Log.String(), system.Secret)
	}
}
