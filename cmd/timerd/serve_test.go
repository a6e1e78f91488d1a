package main

import (
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/redisserver"
	"github.com/timerd-io/timerd/internal/testenv"
)

// ends waits for the end of a process and returns its exit code.
func (p *daemon) ends() int {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(patience):
		p.t.Fatal("timerd did not end")
	}
	return p.cmd.ProcessState.ExitCode()
}

func TestServeRefusesAtOnce(t *testing.T) {
	t.Parallel()
	const atOnce = 15 * time.Second // servers that are away are tried for 30 s
	s := newSystem(t)
	acl := testenv.Redis(t, redisserver.ACL("user default on >"+secret+" ~* &* +@all\n"))
	cluster := testenv.Redis(t, redisserver.Directive("cluster-enabled", "yes"))
	authority := testenv.NewAuthority(t)
	secure, opts := authority.RedisTLS(authority.Issue("redis", "127.0.0.1"))
	testenv.Redis(t, opts...)
	off := testenv.NATS(t, func(o *server.Options) { o.JetStream = false })
	for _, test := range []struct {
		setting, want string
		code          int
	}{
		{"TIMERD_LEASE=1h", "TIMERD_LEASE", exitUsage},
		{"TIMERD_NAMESPACES=", "TIMERD_NAMESPACES", exitUsage},
		{"TIMERD_REDIS_URL=redis://:wrong" + secret + "@" + acl.Addr(), "WRONGPASS", exitFailed},
		{"TIMERD_REDIS_URL=" + cluster.URL(0), "set TIMERD_REDIS_MODE=cluster", exitFailed},
		{"TIMERD_REDIS_MODE=cluster", "set TIMERD_REDIS_MODE=standalone", exitFailed},
		{"TIMERD_REDIS_URL=rediss://" + secure, "set TIMERD_REDIS_CA", exitFailed},
		{"TIMERD_REDIS_URL=redis://" + secure, "write rediss:// in TIMERD_REDIS_URL", exitFailed},
		{"TIMERD_REDIS_CA=" + authority.File, "want rediss://", exitUsage},
		{"TIMERD_NATS_URL=" + off.URL(), "it runs without JetStream; to fix it: add a jetstream block", exitFailed},
		{"TIMERD_NATS_URL=" + testenv.OldNATS(t, s.nats, "2.9.25"), "nats-server 2.9.25 is too old; to fix it: upgrade", exitFailed},
		{"TIMERD_STREAM_REPLICAS=3", "cannot be made with 3 replicas", exitFailed},
		{"TIMERD_HTTP_ADDR=" + s.nats.Addr(), "TIMERD_HTTP_ADDR", exitFailed},
		{"TIMERD_CONSOLE_ADDR=" + s.nats.Addr(), "TIMERD_CONSOLE_ADDR", exitFailed},
		{"TIMERD_CONSOLE_ADDR=:8081", "TIMERD_CONSOLE_PASSWORD", exitUsage},
		{"TIMERD_NATS_URL=embedded", "TIMERD_DATA_DIR", exitUsage},
		{"TIMERD_NATS_URL=embedded://0.0.0.0:4222", "want embedded://user:password@0.0.0.0:4222", exitUsage},
	} {
		began := time.Now()
		p := s.launch(test.setting)
		if code := p.ends(); code != test.code || !strings.Contains(p.log.String(), test.want) {
			t.Errorf("%s: exit code %d, want %d and %q in\n%s", test.setting, code, test.code, test.want, p.log)
		}
		if took := time.Since(began); took > atOnce {
			t.Errorf("%s: it took %v", test.setting, took)
		}
		testenv.Lacks(t, p.log.String(), secret)
	}
}

func TestServeToldToStopWhileItStarts(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.redis.Stop()
	p := s.launch()
	p.log.Wait(t, patience, "server is away, trying again")
	p.stop()
}

func TestServeEmbedded(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	_, port, _ := strings.Cut(freeAddr(t), ":")
	addr := "127.0.0.1:" + port
	settings := []string{"TIMERD_NATS_URL=embedded://timerd:" + secret + "@:" + port, "TIMERD_DATA_DIR=" + t.TempDir()}
	p := s.start(settings...)
	if nc, err := nats.Connect("nats://" + addr); !errors.Is(err, nats.ErrAuthorization) {
		t.Errorf("without a password: %v, %v", nc, err)
	}
	connect := func() jetstream.JetStream {
		t.Helper()
		nc, err := nats.Connect("nats://"+addr, nats.MaxReconnects(-1), nats.UserInfo("timerd", secret))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(nc.Close)
		js, err := jetstream.New(nc)
		if err != nil {
			t.Fatal(err)
		}
		return js
	}
	s.js = connect()
	c := s.collect()
	s.do("FCALL", "timer_set", 1, "a:b:c:1", "one", "PX", 300)
	s.expect(c, "a:b:c:1=one")
	s.do("FCALL", "timer_set", 1, "a:b:c:2", "two", "PX", 3000)
	p.stop()
	testenv.Lacks(t, p.log.String(), secret)
	s.start(settings...)
	s.expect(c, "a:b:c:1=one", "a:b:c:2=two")
	s.settled()
}

// Pid 1 in a container gets its signals like any other.
func TestServeStopsOnInterrupt(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	p := s.start()
	p.signal(syscall.SIGINT)
	if code := p.ends(); code != exitOK {
		t.Errorf("exit code %d\n%s", code, p.log)
	}
	if !strings.Contains(p.log.String(), "timerd has stopped") {
		t.Errorf("no word of it:\n%s", p.log)
	}
}
