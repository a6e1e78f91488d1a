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

	"github.com/nats-io/nats-server/v2/server"

	"github.com/timerd-io/timerd/internal/child"
	"github.com/timerd-io/timerd/internal/poll"
	"github.com/timerd-io/timerd/internal/ports"
)

// natsVariable makes this program be a nats-server: its port, a space, its directory.
const natsVariable = "TIMERD_TORTURE_NATS"

// NATS is a nats-server with JetStream on files, a process of its own, which syncs each
// message to the disk before it acknowledges it.
type NATS struct {
	dir     string
	port    int
	process atomic.Pointer[child.Process]
}

func newNATS(dir string) (*NATS, error) {
	n := &NATS{dir: dir}
	var err error
	for range ports.Tries {
		if n.port, err = ports.Free(); err != nil {
			break
		}
		if err = n.Start(); err == nil {
			return n, nil
		}
	}
	return nil, err
}

// Addr returns host:port. It stays the same over restarts.
func (n *NATS) Addr() string { return ports.Address(n.port) }

// URL returns the server's URL.
func (n *NATS) URL() string { return "nats://" + n.Addr() }

// Start starts the server and returns once it accepts connections.
func (n *NATS) Start() error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(context.Background(), program)
	cmd.Env = append(os.Environ(), natsVariable+"="+strconv.Itoa(n.port)+" "+n.dir)
	p, err := child.Start(cmd)
	if err != nil {
		return fmt.Errorf("servers: nats-server: %w", err)
	}
	n.process.Store(p)
	err = poll.Until(startTimeout, func() error {
		select {
		case <-p.Done():
			return nil
		default:
		}
		var d net.Dialer
		conn, err := d.DialContext(context.Background(), "tcp", n.Addr())
		if err != nil {
			return err
		}
		return conn.Close()
	})
	select {
	case <-p.Done():
		return fmt.Errorf("servers: nats-server on %s ended with exit code %d, see %s.log", n.Addr(), p.ExitCode(), n.dir)
	default:
		return err
	}
}

// Kill ends the server with SIGKILL and returns once it is gone.
func (n *NATS) Kill() error { return kill(n.process.Load()) }

// Close is Kill.
func (n *NATS) Close() error { return n.Kill() }

func kill(p *child.Process) error {
	if err := p.Signal(syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-p.Done()
	return nil
}

// BeNATS makes this process a nats-server if it was started as one, and tells so once that
// has ended. main calls it first.
func BeNATS() (was bool, err error) {
	port, dir, was := strings.Cut(os.Getenv(natsVariable), " ")
	if !was {
		return false, nil
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		return true, fmt.Errorf("servers: %s: %w", natsVariable, err)
	}
	return true, serveNATS(number, dir)
}

func serveNATS(port int, dir string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	s, err := server.NewServer(&server.Options{
		ServerName: "torture",
		Host:       "127.0.0.1",
		Port:       port,
		JetStream:  true,
		StoreDir:   dir,
		SyncAlways: true,
		NoSigs:     true,
		LogFile:    dir + ".log",
		Logtime:    true,
	})
	if err != nil {
		return fmt.Errorf("servers: nats-server: %w", err)
	}
	s.ConfigureLogger()
	s.Start()
	if !s.ReadyForConnections(startTimeout) {
		return errors.New("servers: nats-server: not ready in time")
	}
	<-ctx.Done()
	s.Shutdown()
	s.WaitForShutdown()
	return nil
}
