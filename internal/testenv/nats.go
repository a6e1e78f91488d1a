package testenv

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/poll"
	"github.com/timerd-io/timerd/internal/ports"
)

// errBind is why a NATS server could not listen on its port.
var errBind = errors.New("port taken")

// NATSServer is an in-process nats-server with JetStream on files in a directory of its own.
//
// Start, Stop and Restart are for the test's goroutine; the other methods may be called from any.
type NATSServer struct {
	t    testing.TB
	opts server.Options
	log  *natsLog
	port int

	mu     sync.Mutex
	server *server.Server // nil when stopped
}

// NATSOption changes the options of a server before its first start.
type NATSOption func(*server.Options)

// NATS starts a server, waits until it accepts connections, and stops it when t ends. When t has
// failed, the end of the server's log is added to t's output.
func NATS(t testing.TB, opts ...NATSOption) *NATSServer {
	t.Helper()
	s := &NATSServer{
		t:   t,
		log: &natsLog{},
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
	t.Cleanup(s.cleanup)
	var err error
	for range ports.Tries {
		if s.port, err = ports.Free(); err != nil {
			break
		}
		if err = s.start(); !errors.Is(err, errBind) {
			break
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Addr returns host:port. It stays the same over restarts.
func (s *NATSServer) Addr() string { return ports.Address(s.port) }

// URL returns the server's URL.
func (s *NATSServer) URL() string { return "nats://" + s.Addr() }

// StoreDir returns the directory of JetStream's files.
func (s *NATSServer) StoreDir() string { return s.opts.StoreDir }

// Log returns the end of the server's log.
func (s *NATSServer) Log() string { return s.log.tail() }

// Conn returns a new connection that is closed when the test ends. It reconnects for ever, at
// short intervals; options may change that.
func (s *NATSServer) Conn(opts ...nats.Option) *nats.Conn {
	s.t.Helper()
	opts = append([]nats.Option{
		nats.MaxReconnects(-1),
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

// Stop shuts the server down, which cuts every connection, and returns once its files are closed.
func (s *NATSServer) Stop() {
	s.t.Helper()
	if !s.stop() {
		s.t.Fatalf("testenv: the NATS server at %s is stopped already", s.Addr())
	}
}

// Start starts a stopped server again, on the same port with the same files.
func (s *NATSServer) Start() {
	s.t.Helper()
	deadline := time.Now().Add(startTimeout)
	for {
		err := s.start()
		if err == nil {
			return
		}
		if !errors.Is(err, errBind) || time.Now().After(deadline) {
			s.t.Fatal(err)
		}
	}
}

// Restart is Stop and Start.
func (s *NATSServer) Restart() {
	s.t.Helper()
	s.Stop()
	s.Start()
}

// start starts a server on s.port. Its error is errBind when the port is taken.
func (s *NATSServer) start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server != nil {
		return fmt.Errorf("testenv: the NATS server at %s runs already", s.Addr())
	}
	opts := s.opts.Clone()
	opts.Port = s.port
	srv, err := server.NewServer(opts)
	if err != nil {
		return fmt.Errorf("testenv: configuring a NATS server: %w", err)
	}
	s.log.reset()
	srv.SetLoggerV2(s.log, false, false, false)
	srv.Start()
	err = poll.Until(startTimeout, func() error {
		if s.log.fatalError() != "" || srv.ReadyForConnections(poll.First) {
			return nil
		}
		return errors.New("not ready for connections")
	})
	if fatal := s.log.fatalError(); fatal != "" {
		err = errors.New(fatal)
		if strings.Contains(fatal, "Error listening on port") {
			err = errBind
		}
	}
	if err != nil {
		srv.Shutdown()
		srv.WaitForShutdown()
		return fmt.Errorf("testenv: starting a NATS server on %s: %w\n%s", s.Addr(), err, s.Log())
	}
	s.server = srv
	return nil
}

// stop reports whether there was a server to stop.
func (s *NATSServer) stop() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server == nil {
		return false
	}
	s.server.Shutdown()
	s.server.WaitForShutdown()
	s.server = nil
	return true
}

func (s *NATSServer) cleanup() {
	s.stop()
	if s.t.Failed() {
		s.t.Logf("end of the log of the NATS server at %s:\n%s", s.Addr(), s.Log())
	}
}

// natsLog keeps the last lines that a server logs. The library's own logger ends the whole process
// on a fatal error, such as a port that is taken; this one only keeps it.
type natsLog struct {
	mu    sync.Mutex
	lines []string
	fatal string
}

// natsLogLines is how much of a log is kept.
const natsLogLines = 40

func (l *natsLog) add(level, format string, v ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.lines) == natsLogLines {
		l.lines = append(l.lines[:0], l.lines[1:]...)
	}
	l.lines = append(l.lines, time.Now().Format("15:04:05.000 ")+level+" "+fmt.Sprintf(format, v...))
}

func (l *natsLog) tail() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.lines, "\n")
}

func (l *natsLog) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fatal = ""
}

func (l *natsLog) fatalError() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fatal
}

func (l *natsLog) Fatalf(format string, v ...any) {
	l.add("fatal", format, v...)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fatal = fmt.Sprintf(format, v...)
}

func (l *natsLog) Noticef(format string, v ...any) { l.add("info", format, v...) }
func (l *natsLog) Warnf(format string, v ...any)   { l.add("warn", format, v...) }
func (l *natsLog) Errorf(format string, v ...any)  { l.add("error", format, v...) }
func (l *natsLog) Debugf(format string, v ...any)  { l.add("debug", format, v...) }
func (l *natsLog) Tracef(format string, v ...any)  { l.add("trace", format, v...) }
