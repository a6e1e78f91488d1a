package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sys/unix"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// terminal is a terminal that nobody sits at.
type terminal struct {
	tty      *os.File       // for the program
	keyboard *os.File       // writes are keystrokes
	said     testenv.Output // the program's output
	done     chan struct{}  // closed once the program's side is closed and everything was read
}

// newTerminal returns a terminal with so many columns.
func newTerminal(t *testing.T, width uint16) *terminal {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	fd := int(master.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: width}); err != nil {
		t.Fatal(err)
	}
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	x := &terminal{tty: tty, keyboard: master, done: make(chan struct{})}
	go func() {
		defer close(x.done)
		_, _ = io.Copy(&x.said, master) // ends with an error once the other side is closed
	}()
	t.Cleanup(func() {
		_ = tty.Close() // a command may have closed it
		<-x.done
		if err := master.Close(); err != nil {
			t.Error(err)
		}
	})
	return x
}

// shows runs a command whose standard output is a terminal, and returns the lines that it showed there.
func shows(t *testing.T, width uint16, args ...string) (code int, lines []string) {
	t.Helper()
	x := newTerminal(t, width)
	var errs testenv.Output
	code = run(t.Context(), args, strings.NewReader(""), x.tty, &errs)
	const end = "<the end>"
	if _, err := x.tty.WriteString(end); err != nil {
		t.Fatal(err)
	}
	x.said.Wait(t, patience, end)
	text := strings.ReplaceAll(strings.TrimSuffix(x.said.String(), end), "\r\n", "\n")
	t.Logf("timerd %s on %d columns:\n%s%s", strings.Join(args, " "), width, text, &errs)
	return code, strings.Split(strings.TrimSuffix(text, "\n"), "\n")
}

// runs has a process of its own on the terminal carry out a command. It types something once the command shows its
// prompt, and returns the exit code.
func (x *terminal) runs(t *testing.T, redisURL, waitsFor, typed string, args ...string) (code int) {
	t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = []string{mainVariable + "=1", "TIMERD_REDIS_URL=" + redisURL}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = x.tty, x.tty, x.tty
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true} // Ctrl-C goes to the owner of the terminal
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // the exit code is looked at
	}()
	x.said.Wait(t, patience, waitsFor)
	if _, err := x.keyboard.WriteString(typed); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ended:
	case <-time.After(patience):
		_ = cmd.Process.Kill()
		<-ended
		t.Fatalf("timerd %s did not end:\n%s", strings.Join(args, " "), &x.said)
	}
	return cmd.ProcessState.ExitCode()
}

// colours matches escape sequences for colours.
var colours = regexp.MustCompile("\x1b\\[[0-9;]*m")

// fits checks that lines are no wider than the terminal, and returns them without colours.
func fits(t *testing.T, width uint16, lines []string) (bare []string) {
	t.Helper()
	for _, line := range lines {
		text := colours.ReplaceAllString(line, "")
		if n := textWidth(text); n > int(width) {
			t.Errorf("%d columns on a terminal of %d: %q", n, width, text)
		}
		bare = append(bare, text)
	}
	return bare
}

// inColour has the commands take the terminal for one with colours.
func inColour(t *testing.T) {
	t.Helper()
	t.Setenv("TERM", "xterm")
	t.Setenv("NO_COLOR", "")
}

// The name alone shows the help on a terminal; without one, as in a unit file, it serves.
func TestEmptyListsOnATerminal(t *testing.T) {
	testenv.NoLeaks(t)
	testenv.SetVariables(t, nil)
	if code, lines := shows(t, 100); code != 0 || !strings.Contains(strings.Join(lines, "\n"), "Run it:") {
		t.Errorf("timerd: exit code %d\n%s", code, strings.Join(lines, "\n"))
	}
	if code, out, errs := timerd(t, ""); code != 2 || out != "" || !strings.Contains(errs, "TIMERD_NAMESPACES") {
		t.Errorf("timerd without a terminal and a configuration: exit code %d\n%s%s", code, out, errs)
	}
}

func TestLsOnATerminal(t *testing.T) {
	testenv.NoLeaks(t)
	inColour(t)
	startRedis(t)
	const long = "shop:order:payment-reminder:7f3c9a1e-55d0-4b52-9f2e-0c4a1b6d8e21"
	ok(t, "set", "shop:order:timeout:1", "1ms", strings.Repeat("late ", 60))
	ok(t, "set", long, "40d51m", strings.Repeat("逾期未付款", 30), "--attempt", "3")
	ok(t, "set", "shop:order:timeout:2", "41d", "")
	testenv.Eventually(t, patience, func() bool { return strings.Contains(ok(t, "ls"), "  late 1") },
		"a timer to be late")

	for _, width := range []uint16{70, 80, 200} {
		_, lines := shows(t, width, "ls")
		bare := fits(t, width, lines)
		if len(bare) != 4 {
			t.Fatalf("%d lines, want a title and three timers", len(bare))
		}
		at := strings.Index(bare[0], "KEY")
		for i, want := range []string{"shop:order:timeout:1 ", "shop:order:", "shop:order:timeout:2 "} {
			if !strings.HasPrefix(bare[i+1][at:], want) {
				t.Errorf("the keys are not in line: %q", bare[i+1])
			}
		}
		if !strings.Contains(bare[1], "late ") || !strings.Contains(bare[2], "3 retry  ") ||
			!strings.Contains(bare[2], "8e21  ") {
			t.Errorf("late and retried ones are not marked, or the end of a key is missing:\n%s",
				strings.Join(bare, "\n"))
		}
		if !strings.Contains(lines[1], "\x1b[31mlate ") || !strings.Contains(lines[2], "\x1b[33m3 retry\x1b[0m") {
			t.Errorf("no colours: %q", lines[1:3])
		}
		if wide := strings.HasPrefix(bare[0], "DUE") && strings.Contains(bare[2], long); wide != (width == 200) {
			t.Errorf("due times and whole keys at %d columns: %v", width, wide)
		}
	}
	if out := ok(t, "ls"); !strings.Contains(out, strings.Repeat("逾期未付款", 30)) || !strings.Contains(out, long) ||
		strings.Contains(out, "…") || strings.Contains(out, "\x1b") {
		t.Errorf("a pipe gets less than all, or colours:\n%s", out)
	}
	t.Setenv("NO_COLOR", "1")
	if _, lines := shows(t, 80, "ls"); strings.Contains(strings.Join(lines, ""), "\x1b") ||
		!strings.Contains(lines[2], "3 retry") {
		t.Errorf("with NO_COLOR: %q", lines)
	}
	t.Setenv("NO_COLOR", "")
	t.Setenv("TERM", "dumb")
	if _, lines := shows(t, 80, "ls"); strings.Contains(strings.Join(lines, ""), "\x1b") {
		t.Errorf("on a dumb terminal: %q", lines)
	}
}

func TestWatchOnATerminal(t *testing.T) {
	testenv.NoLeaks(t)
	inColour(t)
	server := testenv.NATS(t)
	testenv.SetVariables(t, map[string]string{"TIMERD_NATS_URL": server.URL()})
	js := server.JetStream()
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "TIMERS",
		Subjects: []string{"timers.fired.>"}}); err != nil {
		t.Fatal(err)
	}
	for i, e := range []event.Event{
		{Key: keys.Key{App: "shop", Module: "order", Type: "payment-reminder",
			ID: "7f3c9a1e-55d0-4b52-9f2e-0c4a1b6d8e21"}, Attempt: 1, Trigger: "deadline"},
		{Key: keys.Key{App: "shop", Module: "order", Type: "timeout", ID: "2"}, Attempt: 3, Trigger: "sweep"},
	} {
		e.Type, e.Due, e.MaxAttempts = event.TypeFired, time.UnixMilli(1763629200000), 16
		e.Time = e.Due.Add(time.Duration(i) * 72 * time.Second)
		e.ID = keys.EventID(e.Key.String(), e.Due.UnixMilli(), e.Attempt)
		e.Data = []byte(strings.Repeat("payload ", 50))
		if _, err := js.Publish(t.Context(), e.Key.Subject("timers", keys.Fired), e.AppendJSON(nil)); err != nil {
			t.Fatal(err)
		}
	}
	for _, width := range []uint16{60, 80, 200} {
		_, lines := shows(t, width, "watch", "--since", "1d", "--count", "2")
		bare := fits(t, width, lines)
		if len(bare) != 2 || !strings.Contains(bare[0], " +0ms  ") || !strings.Contains(bare[1], "+1m 12s late  ") ||
			!strings.Contains(bare[1], " 3/16 retry  ") {
			t.Fatalf("late and retried ones are not marked:\n%s", strings.Join(bare, "\n"))
		}
		if !strings.Contains(lines[1], "\x1b[31m+1m 12s late\x1b[0m") ||
			!strings.Contains(lines[1], "\x1b[33m3/16 retry\x1b[0m") {
			t.Errorf("no colours: %q", lines[1])
		}
		if wide := strings.HasPrefix(bare[0], "2025-11-20T09:00:00.000Z"); wide != (width >= 80) {
			t.Errorf("due times at %d columns: %v", width, wide)
		}
	}
	if code, out, _ := timerd(t, "", "watch", "--since", "1d", "--count", "2"); code != 0 ||
		strings.Count(out, strings.Repeat("payload ", 50)) != 2 || strings.Contains(out, "\x1b") {
		t.Errorf("a pipe gets less than all, or colours: %d\n%s", code, out)
	}
}

func TestDeadLsOnATerminal(t *testing.T) {
	testenv.NoLeaks(t)
	inColour(t)
	server := testenv.NATS(t)
	testenv.SetVariables(t, map[string]string{"TIMERD_NATS_URL": server.URL()})
	js := server.JetStream()
	if err := streams.Ensure(t.Context(), js, streams.Config{}); err != nil {
		t.Fatal(err)
	}
	e := event.Event{
		Type: event.TypeDead, Key: keys.Key{App: "shop", Module: "order", Type: "payment-reminder",
			ID: "7f3c9a1e-55d0-4b52-9f2e-0c4a1b6d8e21"}, Due: time.UnixMilli(1763629200000),
		Attempt: 16, MaxAttempts: 16, Data: []byte("p"), DeadReason: event.ReasonExhausted,
		LastError: strings.Repeat("502 Bad Gateway, ", 10) + "the end",
	}
	e.ID = keys.EventID(e.Key.String(), e.Due.UnixMilli(), e.Attempt)
	if _, err := js.Publish(t.Context(), e.Key.Subject("timers", keys.Dead), e.AppendJSON(nil)); err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(t.Context(), "timers.dead.shop.order.payment-reminder", []byte("junk")); err != nil {
		t.Fatal(err)
	}
	for _, width := range []uint16{60, 80, 200} {
		_, lines := shows(t, width, "dead", "ls")
		bare := fits(t, width, lines)
		if len(bare) != 4 || bare[3] != "2 dead letters" || !strings.HasPrefix(bare[1], "1 ") ||
			!strings.Contains(bare[1], "8e21  ") {
			t.Fatalf("dead ls:\n%s", strings.Join(bare, "\n"))
		}
		at := strings.Index(bare[0], "REASON")
		if !strings.HasPrefix(bare[1][runeOffset(bare[1], at):], "attempts us") ||
			!strings.HasPrefix(bare[2][runeOffset(bare[2], at):], "not an eve") {
			t.Errorf("the reasons are not in line:\n%s", strings.Join(bare, "\n"))
		}
	}
	if out := ok(t, "dead", "ls"); !strings.Contains(out, "the end") || !strings.Contains(out, e.ID) ||
		strings.Contains(out, "…") {
		t.Errorf("a pipe gets less than all:\n%s", out)
	}
}

// runeOffset returns where the n-th character of a text begins.
func runeOffset(s string, n int) int { return len(string([]rune(s)[:n])) }

func TestStatusOnATerminal(t *testing.T) {
	testenv.NoLeaks(t)
	inColour(t)
	server, nats := startRedis(t), testenv.NATS(t)
	nats.Stop()
	t.Setenv("TIMERD_NATS_URL", nats.URL())
	nodes, err := schedule.New(server.Client(), 1000).Nodes(t.Context())
	if err == nil {
		err = nodes[0].RecordAudit(t.Context(), schedule.AuditReport{
			Instance: "test", At: time.Now(), Reason: "subscribed", Gaps: 1, LastGap: "subscribed", GapAt: time.Now(),
			Timers: []schedule.NamespaceCount{{Namespace: "shop:order:payment-reminder"}, {Namespace: keys.Other}},
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, width := range []uint16{60, 80, 200} {
		code, lines := shows(t, width, "status")
		bare := fits(t, width, lines)
		if code != exitFailed || !strings.HasPrefix(lines[0],
			"\x1b[31mfail  \x1b[0mthe state of the streams is unknown") {
			t.Errorf("exit code %d: %q", code, lines[0])
		}
		text := strings.Join(bare, "\n")
		for _, want := range []string{"\n  RANK  INSTANCE", "\n  shop:order:payment-reminder  0        0     0     0\n",
			"\n  NODE ", "\n  " + server.Addr() + "  0 "} {
			if !strings.Contains(text, want) {
				t.Errorf("no %q on %d columns:\n%s", want, width, text)
			}
		}
	}
	t.Setenv("NO_COLOR", "1")
	if _, lines := shows(t, 80, "status"); strings.Contains(strings.Join(lines, ""), "\x1b") {
		t.Errorf("with NO_COLOR: %q", lines)
	}
}

func TestDoctorOnATerminal(t *testing.T) {
	testenv.NoLeaks(t)
	inColour(t)
	redis, nats := testenv.Redis(t), testenv.NATS(t)
	nats.Stop()
	testenv.SetVariables(t, map[string]string{
		"TIMERD_REDIS_URL": redis.URL(0), "TIMERD_NATS_URL": nats.URL(), "TIMERD_NAMESPACES": "*", "TIMERD_LAESE": "1s",
	})
	_, lines := shows(t, 200, "doctor")
	var levels []string
	for _, line := range lines {
		if found := regexp.MustCompile("^\x1b\\[[0-9]+m(ok|warn|fail) *\x1b\\[0m  ").FindStringSubmatch(
			line); found != nil {
			levels = append(levels, found[1])
		}
	}
	order := strings.Join(levels, " ")
	if !regexp.MustCompile(`^(ok )+(warn )+(fail ?)+$`).MatchString(order) {
		t.Errorf("the levels are %q, want the worst last", order)
	}
	t.Setenv("NO_COLOR", "1")
	if _, lines := shows(t, 200, "doctor"); strings.Contains(strings.Join(lines, ""), "\x1b") ||
		!strings.HasPrefix(lines[0], "ok    ") {
		t.Errorf("with NO_COLOR:\n%s", strings.Join(lines, "\n"))
	}
}

// At a terminal, set announces that it reads the payload. The first Ctrl-C ends it, and so does the end of the text.
func TestSetFromATerminal(t *testing.T) {
	testenv.NoLeaks(t)
	server := startRedis(t)
	for _, test := range []struct {
		typed, want string
		code        int
		args        []string
	}{
		{"half a pay\x03", "interrupted: nothing was set", exitFailed, []string{"set", "a:b:c:1", "5m", "-"}},
		{"the payload\n\x04", "a:b:c:2 is due at ", exitOK, []string{"set", "a:b:c:2", "5m", "-"}},
		{`{"key":"a:b:c:3","px":60000}` + "\n\x03", "interrupted", exitFailed, []string{"set", "--from", "-"}},
		{`{"key":"a:b:c:4","px":60000}` + "\n\x04", "1 set, 0 there already, 0 bad", exitOK,
			[]string{"set", "--from", "-"}},
	} {
		x := newTerminal(t, 80)
		if code := x.runs(t, server.URL(0), "from this terminal; Ctrl-D", test.typed, test.args...); code != test.code {
			t.Errorf("timerd %s: exit code %d, want %d", strings.Join(test.args, " "), code, test.code)
		}
		x.said.Wait(t, patience, test.want)
	}
	if out := ok(t, "get", "a:b:c:2", "--raw"); out != "the payload\n" {
		t.Errorf("the payload is %q", out)
	}
	if code, _, _ := timerd(t, "", "get", "a:b:c:1"); code != exitFailed {
		t.Error("a timer was set whose payload was interrupted")
	}
}

// At a terminal, cancel --all asks, and shows its progress. Ctrl-C ends it between two batches.
func TestCancelAllAtATerminal(t *testing.T) {
	testenv.NoLeaks(t)
	server := startRedis(t)
	rdb := server.Client()
	const n = 20_000
	setFar(t, rdb, "shop", n, time.Hour)
	slow := testenv.NewProxy(t, server.Addr())
	slow.Delay(5 * time.Millisecond)
	slowURL := "redis://" + slow.Addr() + "/0"
	const question = ", to cancel. Go on? [y/N] "
	for _, test := range []struct {
		waitsFor, typed, want string
		code                  int
		args                  []string
	}{
		{question, "n\n", "timerd: nothing was done\r\n", exitFailed, nil},
		{question, "\x03", "timerd: nothing was done\r\n", exitFailed, nil},
		// of another app, so that the wanted ones stay
		{question, "y\n", "1 cancelled, 0 too late\r\n", exitOK, nil},
		{" of 20000 timers, up to 20", "\x03", " of 20000 timers, up to a due time of 20", exitFailed,
			[]string{"--yes"}},
	} {
		args := append([]string{"cancel", "--all", "shop"}, test.args...)
		if test.code == exitOK {
			setFar(t, rdb, "pay", 1, time.Hour)
			args[2] = "pay"
		}
		x := newTerminal(t, 80)
		if code := x.runs(t, slowURL, test.waitsFor, test.typed, args...); code != test.code {
			t.Errorf("timerd %s: exit code %d, want %d", strings.Join(args, " "), code, test.code)
		}
		x.said.Wait(t, patience, test.want)
		for _, line := range strings.FieldsFunc(x.said.String(), func(r rune) bool { return r == '\r' || r == '\n' }) {
			if strings.HasPrefix(line, "timerd: cancelled ") && textWidth(strings.TrimSuffix(line, "^C")) >= 80 {
				t.Errorf("a line is too long: %q", line)
			}
		}
	}
}

func TestForecastOnATerminal(t *testing.T) {
	testenv.NoLeaks(t)
	rdb := startRedis(t).Client()
	now, err := rdb.Time(t.Context()).Result()
	if err != nil {
		t.Fatal(err)
	}
	setAt(t, rdb, "shop", 100, now.Add(5*time.Minute))
	setAt(t, rdb, "shop", 1, now.Add(6*time.Minute))
	for _, width := range []uint16{20, 40, 80, 200} {
		_, lines := shows(t, width, "forecast", "--minutes", "10")
		bare := fits(t, width, lines[:len(lines)-1])
		most := slices.IndexFunc(bare, func(line string) bool { return strings.Contains(line, "  100  ") })
		if len(bare) != 11 || width >= 40 && (most < 0 || most == 10 || textWidth(bare[most]) != int(width) ||
			!strings.HasSuffix(bare[most+1], "    1  ▏") && width == 40) {
			t.Errorf("%d columns:\n%s", width, strings.Join(lines, "\n"))
		}
	}
}
