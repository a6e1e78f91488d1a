package servers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/timerd-io/timerd/internal/devserver"
	"github.com/timerd-io/timerd/internal/embedded"
	"github.com/timerd-io/timerd/torture/internal/history"
)

// natsVariable is the environment variable that turns this program into a nats-server. Its value is the path of the
// configuration file.
const natsVariable = "TIMERD_TORTURE_NATS"

// NATS is a nats-server with JetStream on files. It is a separate process, and syncs each message to disk before the
// acknowledgement. timerd has its own user, whose rights can be taken away. A client without a user has all rights.
type NATS struct {
	dir     string
	port    int
	process atomic.Pointer[devserver.Process]
}

// denied are the subjects that NATS can refuse to timerd.
const denied = "timers.*." + history.DeniedApp + ".>"

// configuration is the server's configuration. The rights come last.
const configuration = `server_name: torture
listen: %q
log_file: %q
jetstream {
 store_dir: %q
 sync_interval: always
}
no_auth_user: all
authorization {
 users: [
  { user: all, password: all }
  { user: %[4]s, password: %[4]s, permissions: { publish: { deny: [%[5]s] } } }
 ]
}
`

// newNATS starts a server that keeps its streams in dir and its configuration and log beside it.
func newNATS(ctx context.Context, dir string) (*NATS, error) {
	n := &NATS{dir: dir}
	err := devserver.OnFreePort(func(port int) error {
		n.port = port
		return errors.Join(n.configure(""), n.Start(ctx))
	})
	if err != nil {
		return nil, err
	}
	return n, nil
}

// configure writes the configuration file. denied is a subject that timerd may not publish to, or "".
func (n *NATS) configure(deny string) error {
	if deny != "" {
		deny = strconv.Quote(deny)
	}
	return os.WriteFile(n.configFile(), fmt.Appendf(nil, configuration, n.Addr(), n.logFile(), n.dir, timerdUser, deny),
		0o600)
}

// Deny takes away timerd's right to publish events of the denied app. It returns once the server has applied the
// change.
func (n *NATS) Deny(ctx context.Context) error { return n.reload(ctx, denied) }

// Allow gives the right of Deny back.
func (n *NATS) Allow(ctx context.Context) error { return n.reload(ctx, "") }

func (n *NATS) reload(ctx context.Context, deny string) error {
	before := n.reloads()
	if err := errors.Join(n.configure(deny), n.process.Load().Signal(syscall.SIGHUP)); err != nil {
		return err
	}
	return devserver.Until(ctx, startTimeout, func() error {
		if n.reloads() == before {
			return fmt.Errorf("servers: nats-server has not reloaded its configuration, see %s", n.logFile())
		}
		return nil
	})
}

// reloads returns the number of times that the server has reloaded its configuration.
func (n *NATS) reloads() int {
	log, _ := os.ReadFile(n.logFile()) // without a log nothing was reloaded
	return strings.Count(string(log), "Reloaded server configuration")
}

func (n *NATS) configFile() string { return n.dir + ".conf" }
func (n *NATS) logFile() string    { return n.dir + ".log" }

// Addr returns host:port. It stays the same over restarts.
func (n *NATS) Addr() string { return devserver.Address(n.port) }

// URL returns the server's URL.
func (n *NATS) URL() string { return "nats://" + n.Addr() }

// timerdURL returns timerd's URL for the server at an address.
func timerdURL(addr string) string { return "nats://" + timerdUser + ":" + timerdUser + "@" + addr }

// Start starts the server and returns once it accepts connections. Its error wraps syscall.EADDRINUSE
// when the port is taken.
func (n *NATS) Start(ctx context.Context) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(context.WithoutCancel(ctx), program)
	cmd.Env = append(os.Environ(), natsVariable+"="+n.configFile())
	p, err := devserver.StartProcess(cmd)
	if err != nil {
		return fmt.Errorf("servers: nats-server: %w", err)
	}
	n.process.Store(p)
	return devserver.Until(ctx, startTimeout, func() error {
		select {
		case <-p.Done():
			return devserver.Permanent(n.endedAtStart(p))
		default:
		}
		var d net.Dialer
		conn, err := d.DialContext(ctx, "tcp", n.Addr())
		if err != nil {
			return err
		}
		return conn.Close()
	})
}

func (n *NATS) endedAtStart(p *devserver.Process) error {
	err := fmt.Errorf("servers: nats-server on %s ended with exit code %d, see %s", n.Addr(), p.ExitCode(), n.logFile())
	if log, _ := os.ReadFile(n.logFile()); strings.Contains(string(log), "address already in use") {
		// Without a log, the exit code has to be enough.
		err = fmt.Errorf("%w: %w", syscall.EADDRINUSE, err)
	}
	return err
}

// Kill ends the server with SIGKILL and returns once it is gone.
func (n *NATS) Kill() error { return kill(n.process.Load()) }

// Close is Kill.
func (n *NATS) Close() error { return n.Kill() }

func kill(p *devserver.Process) error {
	if err := p.Signal(syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-p.Done()
	return nil
}

// BeNATS turns this process into a nats-server if it was started as one. It returns true once that has ended. main
// calls it first.
func BeNATS() (was bool, err error) {
	configFile, was := os.LookupEnv(natsVariable)
	if !was {
		return false, nil
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	return true, embedded.Serve(ctx, []string{"-c", configFile})
}
