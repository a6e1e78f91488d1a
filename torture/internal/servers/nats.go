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

// natsVariable makes this program be a nats-server: the path of its configuration file.
const natsVariable = "TIMERD_TORTURE_NATS"

// NATS is a nats-server with JetStream on files, a process of its own, which syncs each
// message to the disk before it acknowledges it. timerd is a user of its own, whose rights can be
// taken away; who names no user may do everything.
type NATS struct {
	dir     string
	port    int
	process atomic.Pointer[devserver.Process]
}

// denied is what NATS refuses timerd where it is told to.
const denied = "timers.*." + history.DeniedApp + ".>"

// configuration is that of the server. The rights come last.
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

// configure writes the configuration file, with a subject that timerd may not publish to; "" is none.
func (n *NATS) configure(deny string) error {
	if deny != "" {
		deny = strconv.Quote(deny)
	}
	return os.WriteFile(n.configFile(), fmt.Appendf(nil, configuration, n.Addr(), n.logFile(), n.dir, timerdUser, deny), 0o600)
}

// Deny takes the right from timerd to publish events of the denied app, Allow gives it back. They return once the server
// has taken it in.
func (n *NATS) Deny(ctx context.Context) error { return n.reload(ctx, denied) }

// Allow is the opposite of Deny.
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

// reloads returns how often the server has taken in its configuration anew.
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

// timerdURL returns the URL by which timerd reaches the server at an address.
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
	if log, _ := os.ReadFile(n.logFile()); strings.Contains(string(log), "address already in use") { // without a log the code has to do
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

// BeNATS makes this process a nats-server if it was started as one, and tells so once that
// has ended. main calls it first.
func BeNATS() (was bool, err error) {
	configFile, was := os.LookupEnv(natsVariable)
	if !was {
		return false, nil
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	return true, embedded.Serve(ctx, []string{"-c", configFile})
}
