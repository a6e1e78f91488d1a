package connect_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/timerd-io/timerd/internal/config"
	"github.com/timerd-io/timerd/internal/connect"
	"github.com/timerd-io/timerd/internal/devserver"
	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/testenv"
)

// Each fault has its own fix, once.
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
		"redis://" + secure: {"Redis at redis://" + secure,
			"write rediss:// in TIMERD_REDIS_URL"},
	} {
		_, err := c.Redis(t.Context(), redisAt(t, url))
		if err == nil {
			t.Fatalf("%s: no error", url)
		}
		f := diag.Of("redis", err, connect.RedisFix(err))
		wants(f.Text, f.Fix, want[0], want[1])
	}

	frozen := testenv.Redis(t)
	frozen.Pause()
	hole := testenv.NewProxy(t, testenv.NATS(t).Addr())
	hole.Blackhole()
	c.Attempt = 200 * time.Millisecond
	_, err := c.Redis(t.Context(), redisAt(t, frozen.URL(0)))
	f := diag.Of("redis", err, connect.RedisFix(err))
	wants(f.Text, f.Fix, "Redis at "+frozen.URL(0)+": it accepts connections and does not answer: ",
		"on its machine: ps -o pid,stat,time,args -C redis-server")
	frozen.Resume()
	testenv.SetVariables(t, map[string]string{"TIMERD_NATS_URL": "nats://" + hole.Addr()})
	conf, err := config.Read(config.SectionNATS)
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.JetStream(t.Context(), conf.NATS.FromOutside())
	f = diag.Of("nats", err, connect.NATSFix(conf.NATS, err))
	wants(f.Text, f.Fix, ": it accepts connections and does not answer: ",
		"on its machine: ps -o pid,stat,time,args -C nats-server")

	locked := testenv.NATS(t, func(o *server.Options) { o.Username, o.Password = "app", secret })
	off := testenv.NATS(t, func(o *server.Options) { o.JetStream = false })
	for url, want := range map[string][2]string{
		"nats://127.0.0.1:1":     {"does not answer", "start nats-server, or correct TIMERD_NATS_URL"},
		locked.URL():             {"Authorization Violation", "correct the credentials in TIMERD_NATS_URL"},
		off.URL():                {"it runs without JetStream", "add a jetstream block"},
		"embedded://127.0.0.1:1": {"does not answer", "start timerd, which has the NATS server"},
		"embedded://app:wrong" + secret + "@" + locked.Addr(): {"Authorization Violation",
			"correct the user and the password"},
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

// A failure of TLS with NATS names its cause, and not the start of the server.
func TestFixesOfNATSCertificates(t *testing.T) {
	testenv.NoLeaks(t)
	var logs testenv.Output
	authority := testenv.NewAuthority(t)
	secure := func(host string, verify bool) *testenv.NATSServer {
		cert, key := authority.Issue("nats", host)
		settings, err := server.GenTLSConfig(&server.TLSConfigOpts{CertFile: cert, KeyFile: key, CaFile: authority.File,
			Verify: verify})
		if err != nil {
			t.Fatal(err)
		}
		return testenv.NATS(t, func(o *server.Options) { o.TLS, o.TLSVerify, o.TLSConfig = true, verify, settings })
	}
	stranger := testenv.NewAuthority(t)
	cert, key := stranger.Issue("timerd", "127.0.0.1")
	signed, verifies := secure("127.0.0.1", false), secure("127.0.0.1", true)
	for name, c := range map[string]struct {
		at            *testenv.NATSServer
		ca, cert, key string
		fix           string
	}{
		"an authority that is not known": {signed, "", "", "", "set TIMERD_NATS_CA to a PEM file"},
		"another authority":              {signed, stranger.File, "", "", "let the file of TIMERD_NATS_CA hold"},
		"another host": {secure("example.org", false), authority.File, "", "",
			"or give it a certificate for 127.0.0.1"},
		"no certificate": {verifies, authority.File, "", "",
			"set TIMERD_NATS_CERT and TIMERD_NATS_KEY"},
		"a certificate of a stranger": {verifies, authority.File, cert, key,
			"let the server know the authority of the certificate in TIMERD_NATS_CERT"},
		"a server without TLS": {testenv.NATS(t), authority.File, "", "", "the server speaks no TLS"},
	} {
		testenv.SetVariables(t, map[string]string{"TIMERD_NATS_URL": c.at.URL(), "TIMERD_NATS_CA": c.ca,
			"TIMERD_NATS_CERT": c.cert, "TIMERD_NATS_KEY": c.key})
		conf, err := config.Read(config.SectionNATS)
		if err != nil {
			t.Fatal(err)
		}
		_, err = connector(&logs, 0).JetStream(t.Context(), conf.NATS)
		if err == nil {
			t.Fatalf("%s: no error", name)
		}
		if f := diag.Of("nats", err, connect.NATSFix(conf.NATS, err)); !strings.Contains(f.Fix, c.fix) {
			t.Errorf("%s: %s\n\tfix: %s\nwant %s", name, f.Text, f.Fix, c.fix)
		}
	}
}
