package main

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/timerd-io/timerd/torture/internal/checker"
	"github.com/timerd-io/timerd/torture/internal/history"
	"github.com/timerd-io/timerd/torture/internal/nemesis"
	"github.com/timerd-io/timerd/torture/internal/servers"
)

// A timerd deliver that writes down no first attempts is complained of, and nobody else.
func TestBrokenDeliver(t *testing.T) {
	program := breakDeliver(t, "d.log(ctx, ev.Key, r)", "if ev.Attempt != 1 {\n\td.log(ctx, ev.Key, r)\n}")
	r, _, err := run(t.Context(), config{
		seed: 1, shape: servers.Standalone, length: 10 * time.Second, timerd: program, rate: 60,
		maxDelay: 2 * time.Second,
		without:  nemesis.Kinds(), dir: t.TempDir(), log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	if r.Count(checker.Unlogged) == 0 || r.Count(checker.Charged) == 0 || passed(r) {
		t.Errorf("%d calls were not logged, %d attempts charged", r.Count(checker.Unlogged), r.Count(checker.Charged))
	}
	for _, v := range r.Violations {
		if history.App(v.Key) != history.HookApp {
			t.Errorf("%s: %s: %s", v.Class, v.Key, v.Text)
		}
	}
}

// breakDeliver builds a timerd in whose deliver some code is replaced, and returns its path.
func breakDeliver(t *testing.T, from, to string) string {
	t.Helper()
	dir := t.TempDir()
	name, err := filepath.Abs(filepath.Join("..", "internal", "deliver", "deliver.go"))
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Count(source, []byte(from)) != 1 {
		t.Fatalf("%s is not once in %s", from, name)
	}
	source = bytes.Replace(source, []byte(from), []byte(to), 1)
	broken, overlay, program := filepath.Join(dir, "deliver.go"), filepath.Join(dir, "overlay.json"),
		filepath.Join(dir, "timerd")
	list, err := json.Marshal(map[string]map[string]string{"Replace": {name: broken}})
	if err != nil {
		t.Fatal(err)
	}
	for file, content := range map[string][]byte{broken: source, overlay: list} {
		if err := os.WriteFile(file, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	build := exec.CommandContext(t.Context(), "go", "build", "-race", "-overlay", overlay, "-o", program,
		"github.com/timerd-io/timerd/cmd/timerd")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return program
}
