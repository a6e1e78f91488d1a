package load

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestCheckRoom(t *testing.T) {
	if err := checkRoom(1<<40, t.TempDir()); !errors.Is(err, ErrNoRoom) {
		t.Errorf("2^40 timers: %v, want ErrNoRoom", err)
	}
	if err := checkRoom(1, "/no/such/directory"); err == nil || errors.Is(err, ErrNoRoom) {
		t.Errorf("no directory: %v", err)
	}
}

func TestMeasuredOperations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		values, failed := make(map[string]float64), errors.New("failed")
		if err := timed(values, func() error { time.Sleep(3 * time.Second); return failed }); !errors.Is(err, failed) ||
			values[ValueTook] != 3 {
			t.Errorf("%v after %v s", err, values[ValueTook])
		}
	})
}

func TestLineCount(t *testing.T) {
	var lines lineCount
	for _, text := range []string{"a\nb", "", "\n\nc"} {
		if n, err := lines.Write([]byte(text)); n != len(text) || err != nil {
			t.Errorf("%q: %d, %v", text, n, err)
		}
	}
	if lines != 3 {
		t.Errorf("%d lines, want 3", lines)
	}
}
