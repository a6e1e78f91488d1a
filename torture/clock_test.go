package main

import (
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/torture/internal/clockstep"
	"github.com/timerd-io/timerd/torture/internal/history"
	"github.com/timerd-io/timerd/torture/internal/servers"
)

// The clock that timerd shows in the Date header of its answers is the stepped one, and timerd stays ready.
func TestClockIsStepped(t *testing.T) {
	testenv.NoLeaks(t)
	dir := t.TempDir()
	binary := filepath.Join(dir, "timerd")
	if err := clockstep.Build(t.Context(), binary, true); err != nil {
		t.Fatal(err)
	}
	s, err := servers.Start(t.Context(), servers.Config{
		Shape: servers.Standalone, Timerd: binary, Dir: dir,
		Env: map[string]string{"TIMERD_NAMESPACES": history.MainApp},
	}, func(err error) { t.Log(err) })
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	timerd := s.Timerds[0]
	for _, step := range []time.Duration{0, 3 * time.Hour, -5 * time.Hour, 0} {
		if err := timerd.StepClock(step); err != nil {
			t.Fatal(err)
		}
		const slack = 10 * time.Minute // of the machine, far less than a step
		if off := time.Until(date(t, timerd)); (off - step).Abs() > slack {
			t.Errorf("stepped by %v, timerd's clock differs by %v", step, off)
		}
		if err := timerd.AwaitReady(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := timerd.Stop(); err != nil {
		t.Error(err)
	}
}

// date returns the time by the clock of a timerd, in whole seconds.
func date(t *testing.T, timerd *servers.Timerd) time.Time {
	t.Helper()
	response, err := http.Get("http://" + timerd.Addr() + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	if err := response.Body.Close(); err != nil {
		t.Fatal(err)
	}
	at, err := http.ParseTime(response.Header.Get("Date"))
	if err != nil {
		t.Fatal(err)
	}
	return at
}
