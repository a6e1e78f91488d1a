package rig_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/timerd-io/timerd/bench/internal/rig"
)

// slowVariable has the test be the process with a slow disk: it names a file.
const slowVariable = "TIMERD_BENCH_TEST_SLOW"

// Each sync of a file takes so much longer, in the process itself alone.
func TestSlowDisk(t *testing.T) {
	const delay, syncs = 5 * time.Millisecond, 20
	name, slow := os.LookupEnv(slowVariable)
	if !slow {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestSlowDisk$")
		cmd.Env = append(os.Environ(), slowVariable+"="+filepath.Join(t.TempDir(), "file"))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	if err := rig.SlowDisk(delay); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Clean(name))
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	for range syncs {
		if err := f.Sync(); err != nil {
			t.Fatal(err)
		}
	}
	if took := time.Since(began); took < syncs*delay {
		t.Errorf("%d syncs took %v, want %v each", syncs, took, delay)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}
