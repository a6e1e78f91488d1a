package rig

import (
	"os"
	"os/exec"
	"testing"
	"time"
)

func TestParseStat(t *testing.T) {
	const line = "42 (a (b) c) S 7 42 42 0 -1 4194560 100 0 0 0 150 50 25 25 20 0 3 0 100 1000000 512 " +
		"18446744073709551615 1 1\n"
	s, err := parseStat([]byte(line))
	if err != nil {
		t.Fatal(err)
	}
	if s.parent != 7 || s.cpu != 2500*time.Millisecond || s.rss != 512*int64(os.Getpagesize()) {
		t.Errorf("%+v, want parent 7, 2.5 s and 512 pages", s)
	}
	for _, bad := range []string{"", "42 a S 7", "42 (a) S 7"} {
		if _, err := parseStat([]byte(bad)); err == nil {
			t.Errorf("%q is no error", bad)
		}
	}
}

func TestMachine(t *testing.T) {
	total, err := Memory("MemTotal")
	if err != nil || total < 1<<20 {
		t.Errorf("%d bytes of memory, %v", total, err)
	}
	if _, err := Memory("NoSuch"); err == nil {
		t.Error("memory of a name that there is not is no error")
	}
	if free, err := FreeDisk(t.TempDir()); err != nil || free <= 0 {
		t.Errorf("%d bytes of disk, %v", free, err)
	}
}

// newRig returns a rig that is closed at the end, and then leaves nothing.
func newRig(t *testing.T) *Rig {
	t.Helper()
	r, err := New("")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(r.Dir); !os.IsNotExist(err) {
			t.Errorf("%s is left: %v", r.Dir, err)
		}
	})
	return r
}

// A stopped process does not count any more, and others go on.
func TestStop(t *testing.T) {
	r := newRig(t)
	for _, role := range []string{"one", "other"} {
		if _, err := r.Start(role, exec.CommandContext(t.Context(), "sleep", "60")); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Stop("one"); err != nil {
		t.Fatal(err)
	}
	used, err := r.Usage()
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := used["one"]; ok || len(used) != 1 {
		t.Errorf("used %v, want the other alone", used)
	}
	if err := r.Died(); err != nil {
		t.Error(err)
	}
}

// A role's usage includes the children of its processes.
func TestUsage(t *testing.T) {
	r := newRig(t)
	// The child ends when it sees that its parent has.
	cmd := exec.CommandContext(t.Context(), "sh", "-c", "sh -c 'while kill -0 $PPID; do :; done' & wait")
	if _, err := r.Start("busy", cmd); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); ; {
		used, err := r.Usage()
		if err != nil {
			t.Fatal(err)
		}
		if u := used["busy"]; u.CPU >= 100*time.Millisecond && u.RSS > 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("used %+v after a minute", used)
		}
	}
}
