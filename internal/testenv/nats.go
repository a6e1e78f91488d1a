package testenv

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/devserver"
	"github.com/timerd-io/timerd/internal/embedded"
)

// NATSServer is an in-process nats-server with JetStream on files in a directory of its own.
//
// Start, Stop and Restart are for the test's goroutine; the other methods may be called from any.
type NATSServer struct {
	t      testing.TB
	opts   server.Options
	log    Output
	port   int
	server *server.Server // nil when stopped
}

// NATSOption changes the options of a server before its first start.
type NATSOption func(*server.Options)

// NATS starts a server, waits until it accepts connections, and stops it when t ends. When t has
// failed, the end of the server's log is added to t's output.
func NATS(t testing.TB, opts ...NATSOption) *NATSServer {
	t.Helper()
	s := &NATSServer{
		t: t,
		opts: server.Options{
			ServerName: "testenv",
			Host:       "127.0.0.1",
			JetStream:  true,
			StoreDir:   tempDir(t, "nats"),
			NoSigs:     true,
		},
	}
	for _, opt := range opts {
		opt(&s.opts)
	}
	t.Cleanup(func() {
		if s.server != nil {
			s.Stop()
		}
		if t.Failed() {
			t.Logf("end of the log of the NATS server at %s:\n%s", s.Addr(), s.Log())
		}
	})
	err := devserver.OnFreePort(func(port int) error {
		s.port = port
		return s.start()
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Addr returns host:port. It stays the same over restarts.
func (s *NATSServer) Addr() string { return devserver.Address(s.port) }

// URL returns the server's URL.
func (s *NATSServer) URL() string { return "nats://" + s.Addr() }

// StoreDir returns the directory of JetStream's files.
func (s *NATSServer) StoreDir() string { return s.opts.StoreDir }

// Log returns the end of the server's log.
func (s *NATSServer) Log() string {
	const most = 40
	lines := strings.SplitAfter(s.log.String(), "\n")
	return strings.Join(lines[max(0, len(lines)-most):], "")
}

// Conn returns a new connection that is closed when the test ends. It reconnects for ever, at
// short intervals; options may change that.
func (s *NATSServer) Conn(opts ...nats.Option) *nats.Conn {
	s.t.Helper()
	opts = append([]nats.Option{
		nats.MaxReconnects(-1),
		nats.Timeout(startTimeout), // a busy machine takes longer than the library's 2 s
		nats.ReconnectWait(20 * time.Millisecond),
		nats.ReconnectJitter(0, 0),
	}, opts...)
	nc, err := nats.Connect(s.URL(), opts...)
	if err != nil {
		s.t.Fatalf("testenv: connecting to %s: %v", s.URL(), err)
	}
	s.t.Cleanup(nc.Close)
	return nc
}

// JetStream returns JetStream on a connection of its own, made by Conn.
func (s *NATSServer) JetStream(opts ...nats.Option) jetstream.JetStream {
	s.t.Helper()
	js, err := jetstream.New(s.Conn(opts...))
	if err != nil {
		s.t.Fatalf("testenv: %v", err)
	}
	return js
}

// LimitAccount lets an account of the server's options use JetStream, with a limit on file storage, in bytes; -1 for
// none. Call it before clients of the account connect. It is gone when the server stops.
func (s *NATSServer) LimitAccount(name string, bytes int64) {
	s.t.Helper()
	account, err := s.server.LookupAccount(name)
	if err == nil {
		limits := noLimits()
		limits.MaxStore = bytes
		err = account.EnableJetStream(map[string]server.JetStreamAccountLimits{"": limits}, nil)
	}
	if err != nil {
		s.t.Fatalf("testenv: JetStream for account %s: %v", name, err)
	}
}

// Limit sets limits of the account of clients without one, and clears all others. They are gone when the server stops.
func (s *NATSServer) Limit(set func(*server.JetStreamAccountLimits)) {
	s.t.Helper()
	limits := noLimits()
	set(&limits)
	if err := s.server.GlobalAccount().UpdateJetStreamLimits(
		map[string]server.JetStreamAccountLimits{"": limits}); err != nil {
		s.t.Fatalf("testenv: %v", err)
	}
}

// DisableJetStream ends JetStream while the server goes on, as the server does itself when its disk is full.
func (s *NATSServer) DisableJetStream() {
	s.t.Helper()
	if err := s.server.DisableJetStream(); err != nil {
		s.t.Fatalf("testenv: %v", err)
	}
}

func noLimits() server.JetStreamAccountLimits {
	return server.JetStreamAccountLimits{
		MaxMemory: -1, MaxStore: -1, MaxStreams: -1, MaxConsumers: -1, MaxAckPending: -1, MemoryMaxStreamBytes: -1,
		StoreMaxStreamBytes: -1,
	}
}

// Stop shuts the server down, which cuts every connection, and returns once its files are closed.
func (s *NATSServer) Stop() {
	s.t.Helper()
	if s.server == nil {
		s.t.Fatalf("testenv: the NATS server at %s is stopped already", s.Addr())
	}
	embedded.Shutdown(s.server)
	s.server = nil
}

// Start starts a stopped server again, on the same port with the same files.
func (s *NATSServer) Start() {
	s.t.Helper()
	Eventually(s.t, startTimeout, func() error {
		err := s.start()
		if err != nil && !errors.Is(err, syscall.EADDRINUSE) {
			err = devserver.Permanent(err)
		}
		return err
	}, "the start of a NATS server")
}

// Restart is Stop and Start.
func (s *NATSServer) Restart() {
	s.t.Helper()
	s.Stop()
	s.Start()
}

// start starts a server on s.port. Its error wraps syscall.EADDRINUSE when the port is taken.
func (s *NATSServer) start() error {
	if s.server != nil {
		return fmt.Errorf("testenv: the NATS server at %s runs already", s.Addr())
	}
	opts := s.opts.Clone()
	opts.Port = s.port
	var err error
	s.server, err = embedded.Run(context.WithoutCancel(s.t.Context()), opts, s.tell, false, startTimeout)
	if err != nil {
		return fmt.Errorf("testenv: starting a NATS server on %s: %w\n%s", s.Addr(), err, s.Log())
	}
	return nil
}

func (s *NATSServer) tell(level slog.Level, text string) {
	fmt.Fprintf(&s.log, "%s %v %s\n", time.Now().Format("15:04:05.000"), level, text)
}
