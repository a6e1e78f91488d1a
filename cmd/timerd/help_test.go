package main

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/timerd-io/timerd/internal/testenv"
)

// commandPaths returns all commands, and the help topics.
func commandPaths(cmd *cobra.Command) [][]string {
	var paths [][]string
	for _, sub := range cmd.Commands() {
		paths = append(paths, strings.Fields(sub.CommandPath())[1:])
		paths = append(paths, commandPaths(sub)...)
	}
	return paths
}

func TestHelpFits(t *testing.T) {
	testenv.SetVariables(t, nil)
	paths := append(commandPaths(newRoot()), nil, []string{"help"})
	if len(paths) < 15 {
		t.Fatalf("only %d commands: %q", len(paths), paths)
	}
	for _, path := range paths {
		help := ok(t, append(path, "--help")...)
		if len(path) > 0 && path[len(path)-1] != "config" && !strings.Contains(help, "Usage:\n  timerd ") {
			t.Errorf("timerd %s --help:\n%s", strings.Join(path, " "), help)
		}
		for line := range strings.Lines(help) {
			if n := textWidth(strings.TrimSuffix(line, "\n")); n > helpWidth || strings.Contains(line, "\t") {
				t.Errorf("timerd %s --help has a line of %d columns, want at most %d: %s", strings.Join(path, " "), n,
					helpWidth, line)
			}
		}
	}
}

// The commands come first; the environment has a page of its own.
func TestHelpOfTheEnvironment(t *testing.T) {
	testenv.SetVariables(t, nil)
	for _, args := range [][]string{{"--help"}, {"help"}, {"serve", "--help"}} {
		help := ok(t, args...)
		if strings.Contains(help, "TIMERD_SWEEP_INTERVAL") || !strings.Contains(help, "timerd help config") {
			t.Errorf("timerd %s:\n%s", strings.Join(args, " "), help)
		}
	}
	config := ok(t, "help", "config")
	for _, want := range []string{"\n  TIMERD_NAMESPACES\n      the keys that are timers: ",
		"\n  TIMERD_SWEEP_INTERVAL (default 1s)\n", "\n  NO_COLOR\n"} {
		if !strings.Contains(config, want) {
			t.Errorf("timerd help config lacks %q:\n%s", want, config)
		}
	}
	if out := ok(t, "config"); out != config {
		t.Errorf("timerd config is not timerd help config:\n%s", out)
	}
}

// Each command that people run is in a group.
func TestHelpIsInGroups(t *testing.T) {
	testenv.SetVariables(t, nil)
	help := ok(t, "--help")
	at := -1
	for _, title := range []string{"Run it:\n  advance ", "Timers:\n  cancel ", "Operate:\n  account ",
		"Look ahead and back:\n", "Hand events on:\n  consume ", "Others:\n  completion "} {
		next := strings.Index(help, "\n\n"+title)
		if next <= at {
			t.Errorf("%q is not there, or in another place:\n%s", title, help)
		}
		at = next
	}
	others := []string{"schema", "version", "completion", "man", "config"}
	for _, cmd := range newRoot().Commands() {
		if cmd.GroupID == "" && !slices.Contains(others, cmd.Name()) {
			t.Errorf("timerd %s is in no group", cmd.Name())
		}
	}
}

func TestWrap(t *testing.T) {
	for _, test := range []struct {
		text, want string
		width      int
	}{
		{"one two three\n", "one two\nthree\n", 9},
		{"  one two three\n\nfour", "  one\n  two\n  three\n\nfour\n", 8},
		{"  averylongword and more\n", "  averylongword\n  and more\n", 10},
	} {
		if got := wrap(test.text, test.width); got != test.want {
			t.Errorf("%q in %d columns is %q, want %q", test.text, test.width, got, test.want)
		}
	}
}

func TestCompletion(t *testing.T) {
	testenv.SetVariables(t, nil)
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if script := ok(t, "completion", shell); !strings.Contains(script, cobra.ShellCompRequestCmd) ||
			!strings.Contains(script, "timerd") {
			t.Errorf("completion %s:\n%s", shell, script)
		}
	}
	cmd := exec.Command("bash", "-n")
	cmd.Stdin = strings.NewReader(ok(t, "completion", "bash"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("bash does not take its script: %v\n%s", err, out)
	}
	// The scripts' questions: the completions of the last word, and whether it may be a file.
	for _, test := range []struct {
		args  []string
		want  []string
		files bool
	}{
		{[]string{"d"}, []string{"dead", "deliver", "deliveries", "dev", "doctor"}, false},
		{[]string{"dead", ""}, []string{"ls", "purge", "replay", "show"}, false},
		{[]string{"set", "--fr"}, []string{"--from"}, false},
		{[]string{"set", "--from", ""}, nil, true},
		{[]string{"get", ""}, nil, false},
		{[]string{"completion", "z"}, []string{"zsh"}, false},
	} {
		_, out, _ := timerd(t, "", append([]string{cobra.ShellCompNoDescRequestCmd}, test.args...)...)
		want := strings.Join(append(test.want, ":4\n"), "\n")
		if test.files {
			want = ":0\n"
		}
		if out != want {
			t.Errorf("completion of %q: %q, want %q", test.args, out, want)
		}
	}
}
