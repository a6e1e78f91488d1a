package system

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/timerd-io/timerd/internal/admin"
	"github.com/timerd-io/timerd/internal/testenv"
)

// Process prepares a process of timerd with s.env and further settings.
func (s *System) Process(args []string, settings ...string) *exec.Cmd {
	s.T.Helper()
	env := maps.Clone(s.Env)
	for _, setting := range settings {
		name, value, _ := strings.Cut(setting, "=")
		env[name] = value
	}
	cmd := exec.Command(os.Getenv(ProgramVariable), args...)
	// By default a program with the race detector waits for a second before it ends, so that it reports all races.
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "GORACE=atexit_sleep_ms=20"}
	for _, name := range slices.Sorted(maps.Keys(env)) {
		cmd.Env = append(cmd.Env, name+"="+env[name])
	}
	return cmd
}

// Run runs a command to its end.
func (s *System) Run(stdin string, args ...string) (code int, stdout, stderr string) {
	s.T.Helper()
	cmd := s.Process(args)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		s.T.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// OK runs a command, which must succeed and print nothing on standard error except progress. It returns its standard
// output.
func (s *System) OK(args ...string) string {
	s.T.Helper()
	code, out, errs := s.Run("", args...)
	if code != 0 || testenv.WithoutProgress(errs) != "" {
		s.T.Fatalf("timerd %q: exit code %d\n%s%s", args, code, out, errs)
	}
	return out
}

// OKWithoutNATS runs an action that must succeed while NATS is away, and say in one line that the history lacks it. It
// returns the standard output.
func (s *System) OKWithoutNATS(args ...string) string {
	s.T.Helper()
	code, out, errs := s.Run("", args...)
	said := testenv.WithoutProgress(errs)
	isTold := strings.HasPrefix(said, "timerd: not in the history, but done: ") && strings.Count(said, "\n") == 1
	if code != 0 || !isTold {
		s.T.Fatalf("timerd %q: exit code %d\n%s%s", args, code, out, errs)
	}
	return out
}

// StatusSays waits until timerd status has an exit code and prints all of the texts. It returns the output.
func (s *System) StatusSays(want int, texts ...string) string {
	s.T.Helper()
	wrapped := regexp.MustCompile("\n {6,}")
	var out string
	testenv.Eventually(s.T, Patience, func() error {
		code, said, errs := s.Run("", "status")
		out = said
		whole := wrapped.ReplaceAllString(said, " ")
		for _, text := range texts {
			if code != want || errs != "" || !strings.Contains(said, text) && !strings.Contains(whole, text) {
				return fmt.Errorf("exit code %d, want %d and %q:\n%s%s", code, want, text, said, errs)
			}
		}
		return nil
	}, "timerd status")
	host, err := os.Hostname()
	if err != nil {
		s.T.Fatal(err)
	}
	for line := range strings.Lines(out) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 100 && !strings.Contains(line, host) {
			s.T.Errorf("%d columns: %s", n, line)
		}
	}
	return out
}

// Command is a process of the command line.
func (s *System) Command(args ...string) (*exec.Cmd, *bytes.Buffer) {
	s.T.Helper()
	cmd := s.Process(args)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	return cmd, &said
}

// Says runs a command, which must end with an exit code and print some texts.
func (s *System) Says(code int, line string, texts ...string) string {
	s.T.Helper()
	cmd, said := s.Command(strings.Fields(line)...)
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		s.T.Fatal(err)
	}
	if cmd.ProcessState.ExitCode() != code {
		s.T.Fatalf("timerd %s: exit code %d, want %d\n%s", line, cmd.ProcessState.ExitCode(), code, said)
	}
	for _, text := range texts {
		if !strings.Contains(said.String(), text) {
			s.T.Fatalf("timerd %s: want %q\n%s", line, text, said)
		}
	}
	return said.String()
}

// SaysAtLast runs a command until it succeeds and prints some texts. On a busy machine that may take a while.
func (s *System) SaysAtLast(line string, texts ...string) {
	s.T.Helper()
	testenv.Eventually(s.T, Patience, func() error {
		cmd, said := s.Command(strings.Fields(line)...)
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("timerd %s: %w\n%s", line, err, said)
		}
		if slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(said.String(), text) }) {
			return fmt.Errorf("timerd %s: want %q\n%s", line, texts, said)
		}
		return nil
	}, "what the command says")
}

// HeldNow returns the lines of timerd holds --json.
func (s *System) HeldNow() (views []admin.HoldView) {
	s.T.Helper()
	for line := range strings.Lines(s.Says(0, "holds --json")) {
		var v admin.HoldView
		if json.Unmarshal([]byte(line), &v) == nil {
			views = append(views, v)
		}
	}
	return views
}

// Holds waits until a number of timers of a namespace are on hold.
func (s *System) Holds(namespace string, n int64) {
	s.T.Helper()
	testenv.Eventually(s.T, Patience, func() error {
		views := s.HeldNow()
		for _, v := range views {
			if v.Namespace == namespace && v.Held != nil && *v.Held == n {
				return nil
			}
		}
		return fmt.Errorf("held: %+v, want %d of %s", views, n, namespace)
	}, "timers to be held")
}
