package deploytest

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
)

// run runs a program and returns its output.
func run(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
	}
	return string(out)
}

// systemd knows every line of the units, and finds that their services have few rights.
func TestUnits(t *testing.T) {
	all, err := filepath.Glob("../systemd/*")
	if err != nil || len(all) != 3 {
		t.Fatalf("%d units, %v; want 3", len(all), err)
	}
	dir := t.TempDir()
	var units []string
	for _, path := range all {
		// systemd wants a program that is there, and looks in the system's directories alone.
		text := regexp.MustCompile(`(?m)^ExecStart=timerd `).ReplaceAllString(read(t, path), "ExecStart=/bin/sh ")
		unit := filepath.Join(dir, filepath.Base(path))
		if err := os.WriteFile(unit, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		units = append(units, unit)
	}
	verify := exec.Command("systemd-analyze", append([]string{"verify", "--man=no"}, units...)...)
	if out := run(t, verify); out != "" { // most faults leave its exit code at 0
		t.Error(out)
	}
	// At most 2.0 of 10, in systemd's measure of exposure.
	security := []string{"security", "--offline=yes", "--threshold=20"}
	run(t, exec.Command("systemd-analyze", append(security, units...)...))
}
