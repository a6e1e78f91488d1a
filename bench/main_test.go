package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/timerd-io/timerd/bench/internal/result"
)

// TestMain lets the tests' binary play the program's own child processes.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && (os.Args[1] == "worker" || os.Args[1] == "nats-server") {
		main()
		return
	}
	os.Exit(m.Run()) //nolint:forbidigo // as testing has it
}

// run runs the program.
func run(ctx context.Context, args ...string) (string, error) {
	var out strings.Builder
	cmd := newCommand()
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	err := cmd.ExecuteContext(ctx)
	return out.String(), err
}

// Systems of every kind that needs no more than Go and Redis lose nothing of a small workload, and timerd is never
// early.
func TestRunAndReport(t *testing.T) {
	dir := t.TempDir()
	timerd := filepath.Join(dir, "timerd")
	build := exec.CommandContext(t.Context(), "go", "build", "-race", "-o", timerd, "./cmd/timerd")
	build.Dir = ".."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	results, crowded, own := filepath.Join(dir, "results.json"), filepath.Join(dir, "crowded.json"),
		filepath.Join(dir, "own.json")
	document := filepath.Join(dir, "benchmarks.md")
	systems := []string{"timerd", "timerd-plain", "zset-10ms", "events-hz100", "nats-schedule", "nats-nak",
		"asynq-tuned"}
	standard := []string{"run", "--profile", "quick", "--grace", "2m", "--timerd", timerd}
	for _, flags := range [][]string{
		{"--workloads", "spike-2k", "--systems", strings.Join(systems, ","), "--pending", "0", "--foreign", "0",
			"--out", results},
		{"--workloads", "spike-2k", "--systems", "timerd", "--pending", "1000", "--foreign", "1000", "--out", crowded},
		{"--workloads", "rates,millions,shapes,guards", "--systems",
			"timerd,timerd-x3,timerd-cluster,timerd-cluster-x3,timerd-r3", "--millions", "3000", "--out", own},
	} {
		if out, err := run(t.Context(), slices.Concat(standard, flags)...); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	r, err := result.Load(results, crowded, own)
	if err != nil {
		t.Fatal(err)
	}
	measured := make(map[string]int)
	for _, m := range r.Measurements {
		if m.Firings == nil {
			continue
		}
		measured[m.System]++
		if m.Firings.Delivered != m.Firings.Timers {
			t.Errorf("%s: %d of %d delivered", m.System, m.Firings.Delivered, m.Firings.Timers)
		}
		if strings.HasPrefix(m.System, "timerd") && (m.Firings.Early > 0 || m.Firings.Duplicates > 0) {
			t.Errorf("%s: %d early, %d repeated", m.System, m.Firings.Early, m.Firings.Duplicates)
		}
		if len(m.Usage) == 0 || m.Firings.ArmLead <= 0 {
			t.Errorf("%s: usage %v, set %v ms before the first was due", m.System, m.Usage, m.Firings.ArmLead)
		}
	}
	for _, system := range systems {
		if measured[system] == 0 {
			t.Errorf("%s was not measured", system)
		}
	}

	if err := os.WriteFile(document, []byte("text\n<!-- results:begin -->\n<!-- results:end -->\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := run(t.Context(), "report", results, crowded, own, "--md", document, "--plots",
		filepath.Join(dir, "plots")); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"text\n", "| timerd, timer_set |", "1k pending", "1k foreign keys", "plots/drain-spike-2k.svg",
		"### Cores by rate", "| 1,000 |", "plots/cores.svg",
		"### One server, several timerds, a cluster", "5k pending", "plots/shapes.svg",
		"### Guards", "| half refused |",
		"### 3k timers pending", "| and during: BGSAVE |", "| timerd's start until its audits are over |",
		"plots/lateness-3k-pending.svg",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

func TestBadFlags(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"run", "--profile", "x"}, `no profile "x"`},
		{[]string{"run", "--systems", "timer"}, `no system "timer"`},
		{[]string{"run", "--workloads", "x"}, `no workload "x"`},
		{[]string{"run", "--timerd", "/no/such/timerd", "--out", filepath.Join(t.TempDir(), "r.json")},
			"/no/such/timerd"},
		{[]string{"report"}, "at least 1 arg"},
		{[]string{"report", "/no/such/file"}, "/no/such/file"},
		{[]string{"worker", "x"}, `no worker of kind "x"`},
	} {
		if _, err := run(t.Context(), c.args...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %q", c.args, err, c.want)
		}
	}
}

// Every step of the full profile has servers of its own, and every system is in it.
func TestFullProfile(t *testing.T) {
	p, err := profileNamed("full")
	if err != nil {
		t.Fatal(err)
	}
	specs, err := choose(nil, p.systems)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range p.steps(specs) {
		names = append(names, s.name)
	}
	all := strings.Join(names, "\n")
	for _, s := range specs {
		if n := strings.Count(all+"\n", s.Name+", 0 pending, 0 foreign keys, round"); n != p.rounds {
			t.Errorf("%s is measured in %d rounds, want %d", s.Name, n, p.rounds)
		}
	}
	for _, want := range []string{"timerd, 1000000 pending", "timerd, 0 pending, 1000000 foreign", "setting, round 3",
		"storms, round 1", "retries, round 1",
		"idle, round 2", "guards, round 2", "rates, round 3", "millions, round 1",
		"shapes, round 3"} {
		if !strings.Contains(all, want) {
			t.Errorf("no step %q in\n%s", want, all)
		}
	}
	if strings.Contains(all, "millions, round 2") {
		t.Errorf("the workload millions is measured more than once, in\n%s", all)
	}
}

// A workload that measures none of the systems has no step.
func TestNoStepWithoutSystems(t *testing.T) {
	for system, want := range map[string]int{"timerd-plain": 0, "timerd": 6} { // two workloads, three rounds
		p, err := profileNamed("full")
		if err != nil {
			t.Fatal(err)
		}
		if err := p.restrict([]string{shapes, durability}, nil, nil); err != nil {
			t.Fatal(err)
		}
		specs, err := choose([]string{system}, p.systems)
		if err != nil {
			t.Fatal(err)
		}
		if steps := p.steps(specs); len(steps) != want {
			t.Errorf("%d steps of shapes and durability for %s, want %d", len(steps), system, want)
		}
	}
}
