package testenv

import (
	"bytes"
	"log/slog"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

// Output collects a program's output or log, for reading while it runs. The zero value is empty and ready to use; its
// methods may be called concurrently.
type Output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write appends p.
func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

// String returns all that was written so far.
func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// Logger returns a logger that writes here at every level.
func (o *Output) Logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(o, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// Wait waits until a text was written.
func (o *Output) Wait(t testing.TB, within time.Duration, text string) {
	t.Helper()
	Eventually(t, within, func() bool { return strings.Contains(o.String(), text) }, "output "+text)
}

// soFar matches the progress of a long listing on standard error.
var soFar = regexp.MustCompile(`(?m)^timerd: searched \d+ of \d+ timers so far, .*\n`)

// WithoutProgress returns a command's standard error without the progress of a listing, which appears on a slow
// machine.
func WithoutProgress(said string) string { return soFar.ReplaceAllString(said, "") }

// Lacks fails the test if a text has a secret.
func Lacks(t testing.TB, text, secret string) {
	t.Helper()
	if strings.Contains(text, secret) {
		t.Errorf("tells the secret: %s", text)
	}
}
