package core_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
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
	p.Log.Wait(t, system.Patience, "cannot reach server, trying again")
	p.Stop()
}

func TestServeEmbedded(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	_, port, _ := strings.Cut(testenv.FreeAddr(t), ":")
	addr := "127.0.0.1:" + port
	settings := []string{"TIMERD_NATS_URL=embedded://timerd:" + system.Secret + "@:" + port, "TIMERD_DATA_DIR=" +
		t.TempDir()}
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

// All commands find NATS by a context of the nats command, with its JetStream domain. A program that timerd consume
// runs gets the environment, without timerd's settings.
func TestServeByNATSContext(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	s.NATS = testenv.NATS(t, func(o *server.Options) {
		o.Username, o.Password, o.JetStreamDomain = "timerd", system.Secret, "hub"
	})
	s.JS = s.NATS.JetStream(nats.UserInfo("timerd", system.Secret))
	dir := t.TempDir()
	file := filepath.Join(dir, "nats", "context", "prod.json")
	text := `{"url": "` + s.NATS.URL() + `", "user": "timerd", "password": "` + system.Secret +
		`", "jetstream_domain": "hub"}`
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
	s.Env["TIMERD_NATS_CONTEXT"], s.Env["XDG_CONFIG_HOME"] = "prod", dir
	delete(s.Env, "TIMERD_NATS_URL")
	p := s.Start()
	c := s.Collect()
	s.Do("FCALL", "timer_set", 1, "a:b:c:1", "one", "PX", 100)
	s.Expect(c, "a:b:c:1=one")
	s.Env["TIMERD_CONSOLE_PASSWORD"], s.Env["SHOP_URL"] = system.Secret, "own"
	consumer, out := s.Command("consume", "a", "--", "sh", "-c",
		`env >&2; read -r event && echo '{"result":"dead","reason":"no use"}'; cat`)
	if err := consumer.Start(); err != nil {
		t.Fatal(err)
	}
	s.Letters(1)
	if err := errors.Join(consumer.Process.Signal(syscall.SIGTERM), consumer.Wait()); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	said := s.OK("dead", "ls") + s.OK("status") + s.OK("doctor")
	if !strings.Contains(said, "a:b:c:1") {
		t.Errorf("no dead letter in\n%s", said)
	}
	p.Stop()
	testenv.Lacks(t, p.Log.String()+said+out.String(), system.Secret)
	if env := out.String(); !strings.Contains(env, "\nSHOP_URL=own\n") || strings.Contains(env, "\nTIMERD_") {
		t.Errorf("the command's environment lacks its own variable, or has timerd's settings:\n%s", env)
	}
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
