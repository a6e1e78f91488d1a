package lab

import (
	"context"
	_ "embed" // for the source of the library
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"
)

//go:embed clock.c.txt
var clockSource []byte

// ErrNoClock means that a [Clock] is impossible on this machine.
var ErrNoClock = errors.New("lab: a clock of its own takes Linux and cc, a C compiler")

// Clock is a wall clock for servers that can be set ahead of the machine's, and back again.
type Clock struct{ library, file string }

// NewClock returns a clock that agrees with the machine's. It keeps its files in a directory, for as long as servers
// use it. Its error is [ErrNoClock] where there can be none.
func NewClock(ctx context.Context, dir string) (*Clock, error) {
	if _, err := exec.LookPath("cc"); err != nil || runtime.GOOS != "linux" {
		return nil, ErrNoClock
	}
	c := &Clock{library: filepath.Join(dir, "clock.so"), file: filepath.Join(dir, "clock")}
	source := filepath.Join(dir, "clock.c")
	if err := os.WriteFile(source, clockSource, 0o600); err != nil {
		return nil, fmt.Errorf("lab: %w", err)
	}
	if out, err := exec.CommandContext(ctx, "cc", "-O2", "-shared", "-fPIC", "-o", c.library,
		source).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("lab: building a clock with cc: %w\n%s", err, out)
	}
	err := c.Set(0)
	return c, err
}

// Set sets the clock ahead of the machine's. The servers that have it show the new time from now on.
func (c *Clock) Set(ahead time.Duration) (err error) {
	f, err := os.OpenFile(c.file, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("lab: %w", err)
	}
	// In one write: a server may read at any moment.
	_, err = f.Write(binary.NativeEndian.AppendUint64(nil, uint64(max(ahead, 0).Milliseconds())))
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return fmt.Errorf("lab: setting a clock: %w", err)
	}
	return nil
}

// Environment returns the further environment variables with which a server shows the clock's time instead of the
// machine's.
func (c *Clock) Environment() []string {
	return []string{"LD_PRELOAD=" + c.library, "TIMERD_TEST_CLOCK=" + c.file}
}
