package connect_test

import (
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/timerd-io/timerd/internal/config"
	"github.com/timerd-io/timerd/internal/connect"
	"github.com/timerd-io/timerd/internal/devserver"
	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/testenv"
)

// What to do is said by what is wrong, and once.
func TestFixes(t *testing.T) {
	testenv.NoLeaks(t)
	var logs testenv.Output
	c := connector(&logs, 0)
	acl := testenv.Redis(t, devserver.ACL("user default on >"+secret+" ~* &* +@all\n"))
	authority := testenv.NewAuthority(t)
	secure, opts := authority.RedisTLS(authority.Issue("redis", "127.0.0.1"))
	testenv.Redis(t, opts...)
	wants := func(text, fix, wantText, wantFix string) {
		t.Helper()
		if !strings.Contains(text, wantText) || !strings.Contains(fix, wantFix) || strings.Contains(text, "to fix it") {
			t.Errorf("%s\n\tfix: %s\nwant %s\n\tfix: %s", text, fix, wantText, wantFix)
		}
		testenv.Lacks(t, text+fix, secret)
	}
	for url, want := range map[string][2]string{
		"redis://127.0.0.1:1":                        {"does not answer", "start Redis, or correct TIMERD_REDIS_URL"},
		"redis://:wrong" + secret + "@" + acl.Addr(): {"WRONGPASS", "correct the user, the password or the database"},
		"redis://" + secure:                          {"Redis at redis://" + secure, "write rediss:// in TIMERD_REDIS_URL"},
	} {
		_, err := c.Redis(t.Context(), redisAt(t, url))
		if err == nil {
			t.Fatalf("%s: no error", url)
		}
		f := diag.Of("redis", err, connect.RedisFix(err))
		wants(f.Text, f.Fix, want[0], want[1])
	}

	locked := testenv.NATS(t, func(o *server.Options) { o.Username, o.Password = "app", secret })
	off := testenv.NATS(t, func(o *server.Options) { o.JetStream = false })
	for url, want := range map[string][2]string{
		"nats://127.0.0.1:1":     {"does not answer", "start nats-server, or correct TIMERD_NATS_URL"},
		locked.URL():             {"Authorization Violation", "correct the credentials in TIMERD_NATS_URL"},
		off.URL():                {"it runs without JetStream", "add a jetstream block"},
		"embedded://127.0.0.1:1": {"does not answer", "start timerd, which has the NATS server"},
		"embedded://app:wrong" + secret + "@" + locked.Addr(): {"Authorization Violation", "correct the user and the password"},
	} {
		testenv.SetVariables(t, map[string]string{"TIMERD_NATS_URL": url, "TIMERD_DATA_DIR": t.TempDir()})
		conf, err := config.Read(config.SectionNATS)
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.JetStream(t.Context(), conf.NATS.FromOutside())
		if err == nil {
			t.Fatalf("%s: no error", url)
		}
		f := diag.Of("nats", err, connect.NATSFix(conf.NATS, err))
		wants(f.Text, f.Fix, want[0], want[1])
	}
}
