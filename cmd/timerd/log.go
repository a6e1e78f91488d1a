package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
)

func newLogger(c logConfig, w io.Writer) *slog.Logger {
	o := &slog.HandlerOptions{Level: c.Level}
	if c.JSON {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}

// redisLogger passes on what go-redis says. Nothing of it is an error of its
// own: a command that fails says so by itself.
type redisLogger struct{ log *slog.Logger }

func (l redisLogger) Printf(_ context.Context, format string, args ...any) {
	l.log.Debug(strings.TrimSpace(fmt.Sprintf(format, args...)), "source", "go-redis")
}

// natsServerLogger passes on what the embedded NATS server says.
type natsServerLogger struct {
	log *slog.Logger

	mu    sync.Mutex
	first string
}

// fatal returns the first reason for which the server gave up, or "".
func (l *natsServerLogger) fatal() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.first
}

// Fatalf keeps why the server gave up, for the error of who started it.
func (l *natsServerLogger) Fatalf(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.first == "" {
		l.first = fmt.Sprintf(format, args...)
	}
}

// Noticef, and the rest, log; the server's notices are timerd's details.
func (l *natsServerLogger) Noticef(format string, args ...any) {
	l.print(slog.LevelDebug, format, args)
}

func (l *natsServerLogger) Warnf(format string, args ...any) { l.print(slog.LevelWarn, format, args) }

func (l *natsServerLogger) Errorf(format string, args ...any) { l.print(slog.LevelError, format, args) }

func (l *natsServerLogger) Debugf(format string, args ...any) { l.print(slog.LevelDebug, format, args) }

func (l *natsServerLogger) Tracef(format string, args ...any) { l.print(slog.LevelDebug, format, args) }

func (l *natsServerLogger) print(level slog.Level, format string, args []any) {
	l.log.Log(context.Background(), level, strings.TrimSpace(fmt.Sprintf(format, args...)), "source", "nats-server")
}
