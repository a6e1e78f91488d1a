package clockstep

import (
	"bytes"
	"context"
	_ "embed" // for the source of the library
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"time"
)

//go:embed ahead.c.txt
var aheadSource []byte

// ErrNoLibrary says that this machine cannot have such a library.
var ErrNoLibrary = errors.New("clockstep: no library")

// BuildAhead builds the shared library out, with cc. A program of C that loads it has a wall clock that is ahead of the
// machine's: [Ahead] says so to it.
func BuildAhead(ctx context.Context, out string) error {
	cc, err := exec.LookPath("cc")
	if err != nil || runtime.GOOS != "linux" {
		return fmt.Errorf("%w: it takes Linux and cc, a C compiler", ErrNoLibrary)
	}
	source := filepath.Join(filepath.Dir(out), "ahead.c")
	if err := os.WriteFile(source, aheadSource, 0o600); err != nil {
		return err
	}
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, cc, "-O2", "-shared", "-fPIC", "-o", out, source)
	cmd.Stderr = &stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("clockstep: %s: %w: %s", cmd, err, bytes.TrimSpace(stderr.Bytes()))
	}
	return nil
}

// Ahead returns the environment of a program whose clock is ahead by whole seconds, on top of its own.
func Ahead(library string, by time.Duration) []string {
	return []string{"LD_PRELOAD=" + library, "TORTURE_AHEAD=" + strconv.FormatInt(int64(by/time.Second), 10)}
}
