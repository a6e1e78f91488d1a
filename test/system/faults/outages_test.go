package faults_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"net/http"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/devserver"
	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/test/system"
)

// ofStatus is the source of the fix.
const ofStatus = "status"

// toldWithin bounds the time until an outage is reported on a busy machine; a quiet one takes some 5 s.
const toldWithin = time.Minute

// outage is a row of the table of outages: the report of all surfaces while it lasts, and nothing else.
type outage struct {
	name  string
	bring func(*scene)
	level diag.Level
	check string
	text  string // a regular expression for the finding
	// ready is the check of /readyz that fails for it; "" where timerd goes on firing, which has a line with check
	// then.
	ready string
	// fix is a regular expression for the commands in the fix, which the test runs; "" if the test ends the outage in
	// another way.
	fix    string
	advice string       // a text of the fix, on every surface
	before func(*scene) // an operator's own part, before the commands; nil for nothing
	end    func(*scene) // after them; nil: the fix is all
}

// scene is the place of an outage: a system with all surfaces that report problems.
type scene struct {
	*system.System
	p       *system.Daemon // nil: there is none that can be asked
	console string
	fired   int // timers, each with its own key
}

// newScene starts a system of one timerd with a console.
func newScene(t *testing.T, opts ...devserver.RedisOption) *scene {
	t.Helper()
	x := newSystemScene(t, opts...)
	x.Env["TIMERD_REDIS_URL"] += "?max_retries=1"
	x.start()
	return x
}

// newSystemScene is newScene without the timerd.
func newSystemScene(t *testing.T, opts ...devserver.RedisOption) *scene {
	t.Helper()
	return &scene{System: system.New(t, opts...)}
}

// start starts the timerd.
func (x *scene) start() {
	x.T.Helper()
	x.console = testenv.FreeAddr(x.T)
	x.p = x.Start("TIMERD_CONSOLE_ADDR=" + x.console)
}

// judgement returns the fault of a surface's report.
type judgement struct {
	found func(who string, found []diag.Finding) error
	ready func(ready) error
}

// ask reads all surfaces, and returns the faults of their reports. The commands take long: they run at the same time,
// once the others' reports are right.
func (x *scene) ask(j judgement) error {
	x.T.Helper()
	if x.p != nil {
		r, err := x.askReady()
		if err == nil {
			err = j.ready(r)
		}
		if err != nil {
			return err
		}
		found, err := x.askConsole()
		if err == nil {
			err = j.found("the console", found)
		}
		if err != nil {
			return err
		}
	}
	errs := make([]error, 2)
	var asking sync.WaitGroup
	asking.Go(func() {
		found, err := x.askStatus()
		if errs[0] = err; err == nil {
			errs[0] = j.found(ofStatus, found)
		}
	})
	asking.Go(func() {
		found, err := x.askDoctor()
		if errs[1] = err; err == nil {
			errs[1] = j.found("doctor", found)
		}
	})
	asking.Wait()
	return errors.Join(errs...)
}

func (x *scene) askStatus() (diag.Findings, error) {
	_, out, errs := x.Run("", "status", "--json")
	var report struct{ Problems diag.Findings }
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		return nil, fmt.Errorf("status: %w\n%s%s", err, out, errs)
	}
	return report.Problems, nil
}

func (x *scene) askDoctor() (wrong diag.Findings, err error) {
	_, out, _ := x.Run("", "doctor", "--json")
	for line := range strings.Lines(out) {
		var f diag.Finding
		if err := json.Unmarshal([]byte(line), &f); err != nil {
			return nil, fmt.Errorf("doctor: %w\n%s", err, out)
		}
		if f.Level != diag.OK {
			wrong = append(wrong, f)
		}
	}
	return wrong, nil
}

// askConsole asks for the JSON of the console, whose page is to say the same.
func (x *scene) askConsole() (diag.Findings, error) {
	text, err := x.get("/api/v1/overview")
	if err != nil {
		return nil, err
	}
	var overview struct {
		Problems                diag.Findings
		Redis                   bool
		Pending, FiredPerSecond *float64
	}
	if err := json.Unmarshal(text, &overview); err != nil {
		return nil, fmt.Errorf("console: %w\n%s", err, text)
	}
	if !overview.Redis && (overview.Pending != nil || overview.FiredPerSecond != nil) {
		x.T.Errorf("the console has numbers without Redis: %s", text)
	}
	page, err := x.get("/")
	if err != nil {
		return nil, err
	}
	shown := html.UnescapeString(string(page))
	same := strings.Count(shown, `<div class="wrong `) == len(overview.Problems) &&
		strings.Contains(shown, "by Redis's clock") == overview.Redis
	for _, f := range overview.Problems {
		text, _, _ := strings.Cut(f.Text, ", the oldest ") // which grows older
		same = same && strings.Contains(shown, text)
	}
	if !same {
		return nil, fmt.Errorf("the console's page does not say what its JSON does: %s", text)
	}
	return overview.Problems, nil
}

// happened waits for the incidents of a kind in the history, by texts in them, and checks that there are no others.
func (x *scene) happened(kind event.EntryKind, texts ...string) {
	x.T.Helper()
	c := testenv.Collect(x.T, x.JS, "TIMERS_HISTORY", "timers.history.operator."+string(kind))
	for i, m := range c.Wait(len(texts), toldWithin) {
		e, err := event.ParseEntry(m.Data)
		if err != nil || e.Kind != kind || e.Via != event.ViaTimerd || !strings.Contains(e.Detail, texts[i]) {
			x.T.Errorf("the history has %s, want %s: %v", m.Data, texts[i], err)
		}
	}
	c.Stays(len(texts), 100*time.Millisecond)
}

// get gets something of the console.
func (x *scene) get(path string) ([]byte, error) {
	answer, err := (&http.Client{Timeout: 10 * time.Second}).Get("http://" + x.console + path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = answer.Body.Close() }()
	return io.ReadAll(answer.Body)
}

// ready is the report of /readyz and the metrics.
type ready struct {
	status  int
	lines   []string // with a problem, without ones that wait for another
	metrics []string // the checks of timerd_problem that are 1
}

func (x *scene) askReady() (r ready, err error) {
	status, body, err := x.p.Get("/readyz")
	if err != nil {
		return ready{}, err
	}
	r.status = status
	for line := range strings.Lines(body) {
		if line = strings.TrimSpace(line); !strings.HasSuffix(line, ": ok") &&
			!strings.Contains(line, ": failed: it waits for ") {
			r.lines = append(r.lines, line)
		}
	}
	_, body, err = x.p.Get("/metrics")
	for _, found := range regexp.MustCompile(`(?m)^timerd_problem\{check="(.*)"\} 1$`).FindAllStringSubmatch(body, -1) {
		r.metrics = append(r.metrics, found[1])
	}
	return r, err
}

// quiet waits until no surface reports a problem, and returns the time that took.
func (x *scene) quiet() time.Duration {
	x.T.Helper()
	began := time.Now()
	testenv.Eventually(x.T, system.Patience, func() error {
		return x.ask(judgement{
			func(who string, found []diag.Finding) error {
				if len(found) > 0 {
					return fmt.Errorf("%s says %+v", who, found)
				}
				return nil
			},
			func(r ready) error {
				if r.status != http.StatusOK || len(r.lines)+len(r.metrics) > 0 {
					return fmt.Errorf("/readyz %d: %q; metrics %q", r.status, r.lines, r.metrics)
				}
				return nil
			},
		})
	}, "nobody to say that anything is wrong")
	return time.Since(began)
}

// tells waits until all surfaces report a row and nothing else. It returns the fix, and the time that took.
func (x *scene) tells(row outage) (fix string, took time.Duration) {
	x.T.Helper()
	began := time.Now()
	wanted := row.wanted(&fix)
	last := ""
	testenv.Eventually(x.T, toldWithin, func() error {
		err := x.ask(wanted)
		if err != nil && err.Error() != last {
			last = err.Error()
			x.T.Logf("after %v: %v", time.Since(began).Round(100*time.Millisecond), err)
		}
		return err
	}, "all to tell of it alone")
	if code, _, _ := x.Run("", "status"); (code == 1) != (row.level == diag.Fail) {
		x.T.Errorf("status: exit code %d", code)
	}
	return fix, time.Since(began)
}

// explained reports whether a finding is that timers are overdue, with its cause: they are where an outage lasts long.
func explained(check, text string) bool {
	return check == diag.CheckOverdue && strings.Contains(text, "; the cause is under ")
}

// wanted returns the expected report of all surfaces. It keeps status's fix.
func (row outage) wanted(fix *string) judgement {
	cause := regexp.MustCompile(row.text)
	status, line := http.StatusOK, row.check+": "
	if row.ready != "" {
		status, line = http.StatusServiceUnavailable, row.ready+": failed: "
	}
	return judgement{
		func(who string, found []diag.Finding) error {
			found = slices.DeleteFunc(slices.Clone(found), func(f diag.Finding) bool {
				return explained(f.Check, f.Text)
			})
			if len(found) != 1 || found[0].Check != row.check || found[0].Level != row.level ||
				!cause.MatchString(found[0].Text) || found[0].Fix == "" || !strings.Contains(found[0].Fix, row.advice) {
				return fmt.Errorf("%s says %+v", who, found)
			}
			if who == ofStatus {
				*fix = found[0].Fix
			}
			return nil
		},
		func(r ready) error {
			r.lines = slices.DeleteFunc(slices.Clone(r.lines), func(line string) bool {
				check, text, _ := strings.Cut(line, ": ")
				return explained(check, text)
			})
			if !strings.Contains(row.check, diag.CheckOverdue) {
				r.metrics = slices.DeleteFunc(slices.Clone(r.metrics),
					func(check string) bool { return check == diag.CheckOverdue })
			}
			if r.status != status || len(r.lines) != 1 || !strings.HasPrefix(r.lines[0], line) ||
				!cause.MatchString(r.lines[0]) || !strings.Contains(r.lines[0], row.advice) ||
				!slices.Equal(r.metrics, []string{row.check}) {
				return fmt.Errorf("/readyz %d: %q; metrics %q", r.status, r.lines, r.metrics)
			}
			return nil
		},
	}
}

// play plays rows, one after the other.
func (x *scene) play(rows ...outage) {
	x.T.Helper()
	x.quiet()
	for _, row := range rows {
		x.T.Logf("%s", row.name)
		row.bring(x)
		fix, told := x.tells(row)
		x.T.Logf("%s: told after %v; fix: %s", row.name, told.Round(100*time.Millisecond), fix)
		x.follow(row, fix)
		if row.end != nil {
			row.end(x)
		}
		x.T.Logf("%s: quiet after %v", row.name, x.quiet().Round(100*time.Millisecond))
	}
}

// follow runs the commands of a fix.
func (x *scene) follow(row outage, fix string) {
	x.T.Helper()
	if row.fix == "" {
		return
	}
	commands := regexp.MustCompile(row.fix).FindAllString(x.withoutAddresses(fix), -1)
	if len(commands) == 0 {
		x.T.Fatalf("%s: no %q in the fix: %s", row.name, row.fix, fix)
	}
	if row.before != nil {
		row.before(x)
	}
	for _, command := range commands {
		x.do(command)
	}
}

// withoutAddresses returns a fix without the addresses of the servers, if they are right.
func (x *scene) withoutAddresses(fix string) string {
	host, port, _ := strings.Cut(x.Redis.Addr(), ":")
	return strings.NewReplacer("redis-cli -h "+host+" -p "+port+" ", "redis-cli ", "nats -s nats://"+x.NATS.Addr()+" ",
		"nats ").Replace(fix)
}

// do runs a command of a fix.
func (x *scene) do(line string) {
	x.T.Helper()
	words := strings.Fields(strings.ReplaceAll(line, "'", ""))
	switch words[0] {
	case "timerd":
		x.OK(words[1:]...)
	case "redis-cli":
		_, port, _ := strings.Cut(x.Redis.Addr(), ":")
		if out, err := exec.Command("redis-cli", append([]string{"-p", port},
			words[1:]...)...).CombinedOutput(); err != nil {
			x.T.Fatalf("%s: %v\n%s", line, err, out)
		}
	case "nats":
		if err := x.nats(words[1:]); err != nil {
			x.T.Fatalf("%s: %v", line, err)
		}
	default:
		x.T.Fatalf("who runs %s?", line)
	}
}

// nats acts like the nats command.
func (x *scene) nats(words []string) error {
	if len(words) < 4 || words[0] != "stream" {
		return errors.New("not known to this test")
	}
	stream, err := x.JS.Stream(x.T.Context(), words[2])
	if err != nil {
		return err
	}
	name, value, _ := strings.Cut(strings.TrimPrefix(words[3], "--"), "=")
	value, kilobytes := strings.CutSuffix(value, "KB")
	n, err := strconv.ParseInt(value, 10, 64)
	if err != nil {
		return err
	}
	if kilobytes {
		n *= 1024
	}
	config := stream.CachedInfo().Config
	switch words[1] + " " + name {
	case "purge seq":
		return stream.Purge(x.T.Context(), jetstream.WithPurgeSequence(uint64(n)))
	case "edit max-msgs":
		config.MaxMsgs = n
	case "edit max-bytes":
		config.MaxBytes = n
	default:
		return errors.New("not known to this test")
	}
	_, err = x.JS.UpdateStream(x.T.Context(), config)
	return err
}

// set sets n timers that are due in an hour, and waits until they are counted.
func (x *scene) set(n int64) {
	x.T.Helper()
	for i := range n {
		x.Do("FCALL", "timer_set", 1, fmt.Sprint("shop:order:timeout:", i), "p", "EX", 3600)
	}
	x.counted(func(c count) bool { return c.Timers == n })
}

// count is a timerd's last count.
type count struct{ N, Timers, Events int64 }

// counted waits until a count is as it is to be, and returns it.
func (x *scene) counted(want func(count) bool) (last count) {
	x.T.Helper()
	testenv.Eventually(x.T, system.Patience, func() error {
		stream, err := x.JS.Stream(x.T.Context(), "TIMERS_STATE")
		if err != nil {
			return err
		}
		m, err := stream.GetLastMsgForSubject(x.T.Context(), "timers.state.counts")
		if err != nil {
			return err
		}
		var counts map[string]count
		if err := json.Unmarshal(m.Data, &counts); err != nil {
			return err
		}
		if last = counts[keys.Single.Counted()]; !want(last) {
			return fmt.Errorf("counted: %s", m.Data)
		}
		return nil
	}, "the timers to be counted")
	return last
}

// later waits for n more counts.
func (x *scene) later(n int64) {
	x.T.Helper()
	was := x.counted(func(count) bool { return true }).N
	x.counted(func(c count) bool { return c.N >= was+n })
}
