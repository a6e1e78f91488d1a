package embedded_test

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/config"
	"github.com/timerd-io/timerd/internal/connect"
	"github.com/timerd-io/timerd/internal/embedded"
	"github.com/timerd-io/timerd/internal/testenv"
)

func natsAt(t *testing.T, url string) config.NATS {
	t.Helper()
	testenv.SetVariables(t, map[string]string{"TIMERD_NATS_URL": url, "TIMERD_DATA_DIR": t.TempDir()})
	c, err := config.Read(config.SectionNATS)
	if err != nil {
		t.Fatal(err)
	}
	return c.NATS
}

func TestEmbeddedNATSKeepsItsStreams(t *testing.T) {
	testenv.NoLeaks(t)
	ctx := t.Context()
	var logs testenv.Output
	log := logs.Logger()
	conf := natsAt(t, "embedded://127.0.0.1:0")
	const maxPayload = 3 << 20

	start := func() (*embedded.Server, jetstream.JetStream, func()) {
		t.Helper()
		ns, err := connect.Connector{Logger: log}.Embedded(t.Context(), conf, maxPayload)
		if err != nil {
			t.Fatal(err)
		}
		js, err := connect.Connector{Logger: log, Patience: 10 * time.Second}.JetStream(ctx, conf,
			nats.InProcessServer(ns))
		if err != nil {
			t.Fatal(err)
		}
		return ns, js, func() {
			js.Conn().Close()
			if err := ns.Stop(); err != nil {
				t.Error(err)
			}
		}
	}
	ns, js, stop := start()
	if got := js.Conn().MaxPayload(); got < 2*maxPayload {
		t.Errorf("max_payload %d", got)
	}
	if _, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}}); err != nil {
		t.Fatal(err)
	}
	outside, err := nats.Connect(ns.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(ctx, "s", []byte("kept")); err != nil {
		t.Fatal(err)
	}
	outside.Close()
	if _, err := (connect.Connector{Logger: log}).Embedded(t.Context(), conf, maxPayload); err == nil ||
		!strings.Contains(err.Error(), "another timerd uses it") {
		t.Errorf("a second server on the same files: %v", err)
	}
	stop()

	_, js, stop = start()
	defer stop()
	s, err := js.Stream(ctx, "S")
	if err != nil {
		t.Fatal(err)
	}
	if m, err := s.GetMsg(ctx, 1); err != nil || string(m.Data) != "kept" {
		t.Errorf("after a restart: %v, %v", m, err)
	}
}

func TestEmbeddedNATSAddress(t *testing.T) {
	testenv.NoLeaks(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	var logs testenv.Output
	if _, err := (connect.Connector{Logger: logs.Logger()}).Embedded(t.Context(),
		natsAt(t, fmt.Sprintf("embedded://%s", taken.Addr())), 1); err == nil ||
		!strings.Contains(err.Error(), "address already in use") {
		t.Errorf("a taken address: %v", err)
	}

	// The default address may belong to somebody else here; then it is taken too.
	if l, err := net.Listen("tcp", natsAt(t, "embedded").ListenAddr()); err == nil {
		defer l.Close()
	}
	ns, err := connect.Connector{Logger: logs.Logger()}.Embedded(t.Context(), natsAt(t, "embedded"), 1)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(logs.String(), "does not listen") {
		t.Errorf("no warning:\n%s", &logs)
	}
	if err := ns.Stop(); err != nil {
		t.Error(err)
	}
}

func TestEmbeddedNATSTellsWhyItFails(t *testing.T) {
	conf := natsAt(t, "embedded://127.0.0.1:0")
	conf.DataDir = "/dev/null/data"
	if _, err := (connect.Connector{Logger: (&testenv.Output{}).Logger()}).Embedded(t.Context(), conf, 1); err == nil ||
		!strings.Contains(err.Error(), "TIMERD_DATA_DIR") {
		t.Errorf("got %v", err)
	}
}

// The password may look like a hash that nats-server knows: it is a password all the same.
func TestEmbeddedNATSAsksForThePassword(t *testing.T) {
	testenv.NoLeaks(t)
	ctx := t.Context()
	const password = "$2a$11$s3cr3t"
	conf := natsAt(t, "embedded://timerd:$2a$11$s3cr3t@0.0.0.0:0")
	var logs testenv.Output
	ns, err := connect.Connector{Logger: logs.Logger()}.Embedded(ctx, conf, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := ns.Stop(); err != nil {
			t.Error(err)
		}
		testenv.Lacks(t, logs.String(), "s3cr3t")
	}()
	port := ns.Addr().(*net.TCPAddr).Port
	url := fmt.Sprintf("nats://127.0.0.1:%d", port)

	for name, options := range map[string][]nats.Option{
		"nobody":           nil,
		"another user":     {nats.UserInfo("admin", password)},
		"another password": {nats.UserInfo("timerd", "x")},
		"a token":          {nats.Token(password)},
	} {
		if nc, err := nats.Connect(url, options...); !errors.Is(err, nats.ErrAuthorization) {
			t.Errorf("%s: %v", name, err)
			if nc != nil {
				nc.Close()
			}
		}
	}
	outside := conf.FromOutside()
	outside.URL = url
	for name, c := range map[string]struct {
		conf    config.NATS
		options []nats.Option
	}{
		"another process": {conf: outside},
		"in process":      {conf, []nats.Option{nats.InProcessServer(ns)}},
	} {
		js, err := connect.Connector{Logger: logs.Logger(), Patience: 10 * time.Second}.JetStream(ctx, c.conf,
			c.options...)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		js.Conn().Close()
	}
}
