package main

import (
	"bytes"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/testenv"
)

// output is what a program writes, for reading while it runs.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// wait waits until a text was written.
func (o *output) wait(t *testing.T, within time.Duration, text string) {
	t.Helper()
	testenv.Eventually(t, within, func() bool { return strings.Contains(o.String(), text) }, "output "+text)
}

func logTo(w io.Writer) *slog.Logger {
	return newLogger(logConfig{Level: slog.LevelDebug}, w)
}

// lacks checks that a text does not tell a secret.
func lacks(t *testing.T, text, secret string) {
	t.Helper()
	if strings.Contains(text, secret) {
		t.Errorf("tells the secret: %s", text)
	}
}
