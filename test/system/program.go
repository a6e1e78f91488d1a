package system

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/timerd-io/timerd/internal/testenv"
)

// ProgramVariable names the timerd that the tests run. Without it each package builds one, with the race detector.
const ProgramVariable = testenv.VariablePrefix + "PROGRAM"

// Main runs the tests of a package of whole systems:
//
//	func TestMain(m *testing.M) { system.Main(m) }
func Main(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code) //nolint:forbidigo // TestMain has no other way to fail
}

func run(m *testing.M) (code int, err error) {
	if os.Getenv(ProgramVariable) == "" {
		var dir string
		if dir, err = os.MkdirTemp("", "timerd-program-"); err != nil {
			return 1, err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
		program := filepath.Join(dir, "timerd")
		if out, err := exec.Command("go", "build", "-race", "-o", program,
			"github.com/timerd-io/timerd/cmd/timerd").CombinedOutput(); err != nil {
			return 1, fmt.Errorf("go build: %w\n%s", err, out)
		}
		if err := os.Setenv(ProgramVariable, program); err != nil {
			return 1, err
		}
	}
	return m.Run(), nil
}
