package notify_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/devserver"
	"github.com/timerd-io/timerd/internal/embedded"
	"github.com/timerd-io/timerd/internal/testenv"
)

// natsVariable makes the test program a nats-server: the path of its configuration file.
const natsVariable = "TIMERD_NOTIFY_TEST_NATS"

func TestMain(m *testing.M) {
	if file, is := os.LookupEnv(natsVariable); is {
		if err := embedded.Serve(context.Background(), []string{"-c", file}); err != nil {
			slog.Error("nats-server ends", "err", err)
			os.Exit(1) //nolint:forbidigo // it is a program of its own
		}
		return
	}
	testenv.Main(m)
}

// natsProcesses are nats-servers in processes of their own, so that they can be killed. They sync each message. Several
// form a cluster.
type natsProcesses struct {
	t       *testing.T
	files   []string // of their configurations
	addrs   []string
	running []*devserver.Process
}

func startNATS(t *testing.T, servers int) *natsProcesses {
	t.Helper()
	n := &natsProcesses{t: t, running: make([]*devserver.Process, servers)}
	var routes []string
	for range servers {
		n.addrs = append(n.addrs, freeAddr(t))
		routes = append(routes, freeAddr(t))
	}
	for i, addr := range n.addrs {
		dir := t.TempDir()
		text := fmt.Sprintf("server_name: s%d\nlisten: %q\njetstream { store_dir: %q, sync_interval: always }\n", i,
			addr, dir)
		if servers > 1 {
			text += fmt.Sprintf("cluster { name: c, listen: %q, routes: [%q] }\n", routes[i],
				"nats://"+strings.Join(routes, `", "nats://`))
			text = strings.ReplaceAll(text, `\"`, `"`)
		}
		n.files = append(n.files, filepath.Join(dir, "nats.conf"))
		if err := os.WriteFile(n.files[i], []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		n.start(i)
	}
	t.Cleanup(func() {
		for i := range n.running {
			n.kill(i)
		}
	})
	testenv.Eventually(t, patience, func() error { // until they have a leader
		_, err := n.JetStream().AccountInfo(t.Context())
		return err
	}, "JetStream")
	return n
}

func freeAddr(t *testing.T) string {
	t.Helper()
	port, err := devserver.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return devserver.Address(port)
}

// url returns the URLs of all servers.
func (n *natsProcesses) url() string { return "nats://" + strings.Join(n.addrs, ",nats://") }

// start starts a server and waits until it accepts connections.
func (n *natsProcesses) start(i int) {
	n.t.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(n.t.Context()), os.Args[0])
	cmd.Env = append(os.Environ(), natsVariable+"="+n.files[i])
	p, err := devserver.StartProcess(cmd)
	if err != nil {
		n.t.Fatal(err)
	}
	n.running[i] = p
	testenv.Eventually(n.t, patience, func() error {
		conn, err := net.Dial("tcp", n.addrs[i])
		if err != nil {
			return err
		}
		return conn.Close()
	}, "the start of a nats-server")
}

// kill ends a server with SIGKILL.
func (n *natsProcesses) kill(i int) {
	n.t.Helper()
	if err := n.running[i].Signal(syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		n.t.Fatal(err)
	}
	<-n.running[i].Done()
}

// JetStream returns JetStream on a connection of its own.
func (n *natsProcesses) JetStream(opts ...natsgo.Option) jetstream.JetStream {
	n.t.Helper()
	nc, err := natsgo.Connect(n.url(), append([]natsgo.Option{natsgo.MaxReconnects(-1)}, opts...)...)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		n.t.Fatal(err)
	}
	return js
}
