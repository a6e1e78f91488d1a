package embedded

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// readyPause bounds one look at whether a server accepts connections.
const readyPause = 10 * time.Millisecond

// Run starts a server within this process and returns once it accepts connections. It returns an error if the server
// does not do so within timeout or before ctx ends. The error wraps syscall.EADDRINUSE if the server's port is taken.
// log gets the server's messages, from any goroutine, with debug its details too; a fatal error of the server is
// returned, and not logged. The caller ends the server with [Shutdown]; after an error nothing is left running.
func Run(ctx context.Context, opts *server.Options, log Log, debug bool,
	timeout time.Duration) (*server.Server, error) {
	s, err := server.NewServer(opts)
	if err != nil {
		return nil, err
	}
	l := &logger{log: log}
	s.SetLoggerV2(l, debug, false, false)
	s.Start()
	for deadline := time.Now().Add(timeout); !s.ReadyForConnections(readyPause); {
		if err = ctx.Err(); err == nil && time.Now().After(deadline) {
			err = fmt.Errorf("not ready within %v", timeout)
		}
		if fatal := l.fatal.Load(); fatal != nil {
			err = fatal
		}
		if err != nil {
			Shutdown(s)
			return nil, err
		}
	}
	return s, nil
}

// Shutdown shuts a server down and returns once its files are closed.
func Shutdown(s *server.Server) {
	s.Shutdown()
	s.WaitForShutdown()
}

// Serve makes this process a nats-server, with the flags of nats-server as args, until ctx ends. On SIGHUP it reads its
// configuration file again, like nats-server; its log has faults of that. A fatal error of the server ends the process.
func Serve(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("nats-server", flag.ContinueOnError)
	opts, err := server.ConfigureOptions(flags, args, server.PrintServerAndExit, flags.Usage, server.PrintTLSHelpAndDie)
	if err != nil {
		return fmt.Errorf("nats-server: %w", err)
	}
	opts.NoSigs = true
	s, err := server.NewServer(opts)
	if err != nil {
		return fmt.Errorf("nats-server: %w", err)
	}
	s.ConfigureLogger()
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	defer signal.Stop(hangup)
	s.Start()
	for {
		select {
		case <-ctx.Done():
			Shutdown(s)
			return nil
		case <-hangup:
			if err := s.Reload(); err != nil {
				s.Errorf("not reloaded: %v", err)
			}
		}
	}
}

// Log gets one message of a server. The server's notices come as [slog.LevelDebug]: to an operator they are details.
type Log func(level slog.Level, text string)

// logger is the [server.Logger] in front of a Log. It keeps the server's first fatal error; the library's own logger
// would end the whole process.
type logger struct {
	log   Log
	fatal atomic.Pointer[fatalError]
}

func (l *logger) Fatalf(format string, args ...any) {
	l.fatal.CompareAndSwap(nil, &fatalError{fmt.Sprintf(format, args...)})
}
func (l *logger) Errorf(format string, args ...any)  { l.pass(slog.LevelError, format, args) }
func (l *logger) Warnf(format string, args ...any)   { l.pass(slog.LevelWarn, format, args) }
func (l *logger) Noticef(format string, args ...any) { l.pass(slog.LevelDebug, format, args) }
func (l *logger) Debugf(format string, args ...any)  { l.pass(slog.LevelDebug, format, args) }
func (l *logger) Tracef(format string, args ...any)  { l.pass(slog.LevelDebug, format, args) }

func (l *logger) pass(level slog.Level, format string, args []any) {
	l.log(level, strings.TrimSpace(fmt.Sprintf(format, args...)))
}

// fatalError is the server's first fatal error.
type fatalError struct{ text string }

func (e *fatalError) Error() string { return e.text }

// Is reports whether target is syscall.EADDRINUSE and the port is taken: the server reports that only in words.
func (e *fatalError) Is(target error) bool {
	return errors.Is(target, syscall.EADDRINUSE) && strings.Contains(e.text, "address already in use")
}
