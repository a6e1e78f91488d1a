// Package clockstep builds a timerd whose wall clock can be stepped while it runs, as an operator or an NTP client
// steps the clock of a machine. The source is the same, but go build -overlay replaces Go's own time package by a copy
// that adds the step. So timerd needs no code for it, and every library in timerd sees the step too. Go reads the clock
// without libc, so a preloaded library could not do it.
package clockstep

import (
	"bytes"
	"context"
	_ "embed" // for the sources of the overlay
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Variable is the environment variable that names the file with the step. A built timerd reads the file when it gets a
// SIGUSR2. The step is in whole seconds from the machine's clock. After the step, timerd removes the file.
const Variable = "TORTURE_CLOCK"

const timerdPackage = "github.com/timerd-io/timerd/cmd/timerd"

//go:embed time.go.txt
var stepSource []byte

//go:embed timerd.go.txt
var signalSource []byte

// reading is the line of Now that reads both clocks. The monotonic clock stays as it is.
const (
	reading = "func Now() Time {\n\tsec, nsec, mono := runtimeNow()\n"
	stepped = reading + "\tsec += ClockStep.Load()\n"
)

// Build builds the program out, from the source tree in which this program runs, with the race detector if race is set.
// After an error there is no program: the go command failed, or the installed Go reads the clock in another way than
// the patch expects.
func Build(ctx context.Context, out string, race bool) (err error) {
	dir, err := os.MkdirTemp("", "timerd-clockstep-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	overlay, err := writeOverlay(ctx, dir)
	if err != nil {
		return err
	}
	args := []string{"build", "-overlay", overlay, "-o", out}
	if race {
		args = append(args, "-race")
	}
	_, err = goCommand(ctx, append(args, timerdPackage)...)
	return err
}

// writeOverlay writes the replaced files and the list of them, and returns the name of the list.
func writeOverlay(ctx context.Context, dir string) (list string, err error) {
	goroot, err := goCommand(ctx, "env", "GOROOT")
	if err != nil {
		return "", err
	}
	timerd, err := goCommand(ctx, "list", "-f", "{{.Dir}}", timerdPackage)
	if err != nil {
		return "", err
	}
	clock := filepath.Join(goroot, "src", "time", "time.go")
	source, err := os.ReadFile(clock)
	if err != nil {
		return "", err
	}
	patched, err := patch(source)
	if err != nil {
		return "", fmt.Errorf("clockstep: %s: %w", clock, err)
	}
	replace := map[string]string{}
	for name, content := range map[string][]byte{
		clock: patched,
		filepath.Join(goroot, "src", "time", "clockstep.go"): stepSource,
		filepath.Join(timerd, "clockstep.go"):                signalSource,
	} {
		replace[name] = filepath.Join(dir, fmt.Sprintf("%d.go", len(replace)))
		if err := os.WriteFile(replace[name], content, 0o600); err != nil {
			return "", err
		}
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	list = filepath.Join(dir, "overlay.json")
	return list, os.WriteFile(list, text, 0o600)
}

// patch makes Now add the step to the wall clock.
func patch(source []byte) ([]byte, error) {
	if n := bytes.Count(source, []byte(reading)); n != 1 {
		return nil, fmt.Errorf("the time package of Go has %d lines %q, want one: "+
			"adapt the patch in torture/internal/clockstep to this Go", n, reading)
	}
	return bytes.Replace(source, []byte(reading), []byte(stepped), 1), nil
}

// goCommand runs the go command and returns its output, trimmed.
func goCommand(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("clockstep: go %s: %w: %s; run it in timerd's source tree, with Go on the PATH",
			strings.Join(args, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return string(bytes.TrimSpace(out)), nil
}
