package main

import (
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/torture/internal/history"
	"github.com/timerd-io/timerd/torture/internal/nemesis"
	"github.com/timerd-io/timerd/torture/internal/report"
	"github.com/timerd-io/timerd/torture/internal/servers"
)

func TestMain(m *testing.M) {
	if was, err := servers.BeNATS(); was {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(exitFailed) //nolint:forbidigo // as the testing package has it
		}
		os.Exit(exitOK) //nolint:forbidigo // as the testing package has it
	}
	os.Exit(m.Run()) //nolint:forbidigo // as the testing package has it
}

// Three timerds under a minute of faults, the same ones each time. docs/inside/torture.md explains others, and longer
// ones. The file of TIMERD_TEST_MESSAGES, if set, gets the messages, for the test of the schemas in another module.
func TestTorture(t *testing.T) {
	testenv.NoLeaks(t)
	dir, err := os.MkdirTemp("", "timerd-torture-") //nolint:usetesting // it stays when the test fails
	if err != nil {
		t.Fatal(err)
	}
	r, file, err := run(t.Context(), config{
		seed: 241291, shape: servers.Several, length: 60 * time.Second, race: true, rate: 40, maxDelay: 6 * time.Second,
		dir: dir, messages: os.Getenv(testenv.VariablePrefix + "MESSAGES"),
		log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	if err != nil {
		t.Fatalf("%v; see %s", err, dir)
	}
	var table strings.Builder
	if err := report.Write(&table, r); err != nil {
		t.Fatal(err)
	}
	t.Log("\n" + table.String())
	if r.Strict < 500 || r.Forbidden < 100 || len(r.Faults) < 5 {
		t.Errorf("%d firings had to come, %d must not have, %d kinds of faults: this run proves little", r.Strict,
			r.Forbidden, len(r.Faults))
	}
	for _, kind := range []string{
		nemesis.ClockStepped, nemesis.RightsTaken, nemesis.SubjectDenied, nemesis.KeysEvicted, nemesis.Giants,
		nemesis.Flood,
		nemesis.HeldRate, nemesis.HeldShift, nemesis.HeldDead, nemesis.HeldFor, nemesis.HeldOverlap,
		nemesis.DeliverKilled, nemesis.DeliversKilled, nemesis.DeliverPaused, nemesis.FileChanged, nemesis.HostDead,
	} {
		if r.Faults[kind] == 0 {
			t.Errorf("no fault %q: choose another seed", kind)
		}
	}
	if n := len(r.Innocents.BesideExcess); n < 100 {
		t.Errorf("%d timers were innocent beside faults that concern others", n)
	}
	if e := r.Ends; e.Held < 20 || e.Shifted == 0 || e.Buried == 0 || e.TooLate+e.Dropped == 0 {
		t.Errorf("%+v: this run proves little of holds and limits", e)
	}
	if w := r.Webhooks; w.Delivered < 300 || w.Dead == 0 || w.Records[history.Retried] < 50 ||
		w.Records[history.Postponed] == 0 || len(w.Calm)+len(w.Beside) < 20 {
		t.Errorf("%+v: this run proves little of webhooks", w)
	}
	if !passed(r) {
		t.Fatalf("a promise was broken; judge again with: go run ./torture judge %s", file)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Error(err)
	}
}

func TestBadUsage(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"twist", `"twist" is no command`},
		{"run -shape round", `-shape "round": want one of [standalone several sentinel cluster]`},
		{"run -without rain", `invalid value "rain" for flag -without: want one of ["timerd killed"`},
		{"run -minutes 0", "-minutes and -rate must be greater than 0"},
		{"run now", `unexpected argument "now"`},
		{"judge", "judge wants one file"},
	} {
		var stdout, stderr strings.Builder
		code := command(t.Context(), strings.Fields(c.args), &stdout, &stderr)
		if code != exitUsage || !strings.Contains(stderr.String(), c.want) {
			t.Errorf("%s: exit code %d, %q; want 2 and %q", c.args, code, stderr.String(), c.want)
		}
	}
	var stdout, stderr strings.Builder
	if code := command(t.Context(), []string{"judge", "/no/such/file"}, &stdout, &stderr); code != exitFailed {
		t.Errorf("exit code %d for a missing file, want 1: %s", code, stderr.String())
	}
}
