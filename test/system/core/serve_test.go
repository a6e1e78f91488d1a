package core_test

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/test/system"
)

func TestServeToldToStopWhileItStarts(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	s.Redis.Stop()
	p := s.Launch()
	p.Log.Wait(t, system.Patience, "server is away, trying again")
	p.Stop()
}

func TestServeEmbedded(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	_, port, _ := strings.Cut(testenv.FreeAddr(t), ":")
	addr := "127.0.0.1:" + port
	settings := []string{"TIMERD_NATS_URL=embedded://timerd:" + system.Secret + "@:" + port, "TIMERD_DATA_DIR=" + t.TempDir()}
	p := s.Start(settings...)
	if nc, err := nats.Connect("nats://" + addr); !errors.Is(err, nats.ErrAuthorization) {
		t.Errorf("without a password: %v, %v", nc, err)
	}
	connect := func() jetstream.JetStream {
		t.Helper()
		nc, err := nats.Connect("nats://"+addr, nats.MaxReconnects(-1), nats.UserInfo("timerd", system.Secret))
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
	s.JS = connect()
	c := s.Collect()
	s.Do("FCALL", "timer_set", 1, "a:b:c:1", "one", "PX", 300)
	s.Expect(c, "a:b:c:1=one")
	s.Do("FCALL", "timer_set", 1, "a:b:c:2", "two", "PX", 3000)
	p.Stop()
	testenv.Lacks(t, p.Log.String(), system.Secret)
	s.Start(settings...)
	s.Expect(c, "a:b:c:1=one", "a:b:c:2=two")
	s.Settled()
}

// Pid 1 in a container gets its signals like any other.
func TestServeStopsOnInterrupt(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	p := s.Start()
	p.Signal(syscall.SIGINT)
	if code := p.Ends(); code != 0 {
		t.Errorf("exit code %d\n%s", code, p.Log)
	}
	if !strings.Contains(p.Log.String(), "timerd has stopped") {
		t.Errorf("no word of it:\n%s", p.Log)
	}
}
