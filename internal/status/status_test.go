package status_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/internal/status"
	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

func member(instance, version, lease string, alive bool) query.Member {
	self := schedule.Self{Instance: instance, Version: version}
	if lease != "" {
		self.Settings = map[string]string{"TIMERD_LEASE": lease, "TIMERD_STREAM": "TIMERS"}
	}
	return query.Member{Self: self, Alive: alive, Seen: time.UnixMilli(1763629200000)}
}

func TestDifferences(t *testing.T) {
	t.Parallel()
	a, b, c := member("a", "v1", "10s", true), member("b", "v1", "20s", true), member("c", "v1", "10s", true)
	newer := member("d", "v2", "10s", true)
	newer.Settings["TIMERD_NEW"] = "x"
	for _, test := range []struct {
		members []query.Member
		want    string
	}{
		{nil, "[]"},
		{[]query.Member{a}, "[]"},
		{[]query.Member{a, c, newer, member("old", "", "", true)}, "[]"},
		{[]query.Member{a, member("b", "v1", "20s", false)}, "[]"},
		{[]query.Member{a, b, c}, `[TIMERD_LEASE is "10s" on a, c, "20s" on b]`},
	} {
		if got := fmt.Sprint(status.Differences(test.members)); got != test.want {
			t.Errorf("%v: %s, want %s", test.members, got, test.want)
		}
	}
	var many []query.Member
	for i := range 5 {
		many = append(many, member(fmt.Sprint("m", i), "v1", "10s", true))
	}
	got := fmt.Sprint(status.Differences(append(many, b)))
	if want := `[TIMERD_LEASE is "10s" on m0, m1, m2 and 2 others, "20s" on b]`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestVersions(t *testing.T) {
	t.Parallel()
	got := fmt.Sprint(status.Versions([]query.Member{member("a", "v2", "", true), member("b", "", "", true),
		member("c", "v1", "", false), member("d", "v2", "", true)}))
	if want := "[{v2 [a d]}]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestNoTimerdIsAlive(t *testing.T) {
	t.Parallel()
	dead := member("a", "v1", "", false)
	older := member("b", "v1", "", false)
	older.Seen = older.Seen.Add(-time.Hour)
	for _, test := range []struct {
		members []query.Member
		want    string
	}{
		{nil, "no timerd is alive: nothing fires until one runs"},
		{[]query.Member{dead, older},
			"no timerd is alive: nothing fires until one runs; the last one, a, was seen at 2025-11-20T09:00:00.000Z"},
		{[]query.Member{dead, member("c", "v1", "", true)}, ""},
	} {
		if got := status.Unattended(test.members); got != test.want {
			t.Errorf("%q, want %q", got, test.want)
		}
	}
}

// Whoever sets timers can write to where timerds say who they are.
func TestTextsAreSafeToShow(t *testing.T) {
	t.Parallel()
	strange := member("a\x1b[31m"+strings.Repeat("x", 1000), "v1\x07", "10s\x1b", true)
	texts := fmt.Sprint(status.Versions([]query.Member{strange})[0].Value,
		status.Differences([]query.Member{strange, member("b", "v1", "20s", true)}),
		status.Unattended([]query.Member{{Self: strange.Self, Seen: strange.Seen}}))
	if strings.ContainsAny(texts, "\x1b\x07") || strings.Contains(texts, strings.Repeat("x", 100)) {
		t.Errorf("%q", texts)
	}
}

// expect compares the problems, each "level text" from its beginning on.
func expect(t *testing.T, r *status.Report, want ...string) {
	t.Helper()
	var got []string
	for _, p := range r.Problems {
		if p.Check == diag.CheckOverdue { // on a machine that stood still
			continue
		}
		got = append(got, fmt.Sprintf("%s %s", p.Level, p.Text))
		if p.Fix == "" {
			t.Errorf("no fix: %s", p.Text)
		}
	}
	same := slices.EqualFunc(got, want, strings.HasPrefix)
	if !same {
		t.Errorf("problems\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

// installation is a Redis and a NATS with streams.
type installation struct {
	t     *testing.T
	sched *testenv.Schedule
	nats  *testenv.NATSServer
	js    jetstream.JetStream
}

func newInstallation(t *testing.T, opts ...testenv.NATSOption) *installation {
	t.Helper()
	x := &installation{t: t, sched: testenv.NewSchedule(t), nats: testenv.NATS(t, opts...)}
	x.js = x.nats.JetStream()
	if err := streams.Ensure(t.Context(), x.js, streams.Config{}); err != nil {
		t.Fatal(err)
	}
	return x
}

// beat sends a heartbeat of a timerd.
func (x *installation) beat(instance string, settings map[string]string) {
	x.t.Helper()
	x.beatSince(time.Now().Add(time.Hour), instance, settings) // nobody expects it to have counted the timers
}

func (x *installation) beatSince(since time.Time, instance string, settings map[string]string) {
	x.t.Helper()
	self := schedule.Self{Instance: instance, Version: "v1", Host: "host", PID: 7, Since: since, Settings: settings}
	if _, err := x.sched.Node.Heartbeat(x.t.Context(), self, time.Hour); err != nil {
		x.t.Fatal(err)
	}
}

// report asks both servers.
func (x *installation) report() *status.Report {
	x.t.Helper()
	ctx, cancel := context.WithTimeout(x.t.Context(), time.Minute)
	defer cancel()
	return status.Sources{Schedule: x.sched.Schedule, JetStream: x.js}.Gather(ctx)
}

func TestAllIsWell(t *testing.T) {
	t.Parallel()
	x := newInstallation(t)
	x.beat("a", map[string]string{"TIMERD_LEASE": "10s"})
	if err := x.sched.Client.FCall(t.Context(), "timer_set", []string{"shop:a:b:1"}, "p", "PX",
		3600_000).Err(); err != nil {
		t.Fatal(err)
	}
	err := x.sched.Node.RecordAudit(t.Context(), schedule.AuditReport{
		Instance: "a", At: time.Now(), Took: time.Second, Reason: "start", Gaps: 1, LastGap: "subscribed",
		GapAt:  time.Now(),
		Timers: []schedule.NamespaceCount{{Namespace: "shop", Pending: 1}, {Namespace: keys.Other}},
	})
	if err != nil {
		t.Fatal(err)
	}
	r := x.report()
	expect(t, r)
	if r.Failed() || r.Redis == nil || r.NATS == nil {
		t.Fatalf("%+v", r)
	}
	answers(t, r, diag.OK, "Firing on time", "")
	if len(r.Redis.Timerds) != 1 || r.Redis.Timerds[0].Version != "v1" || r.Redis.Timerds[0].Config == "" ||
		r.Redis.Pending != 1 || r.Redis.Oldest != nil {
		t.Errorf("%+v", r.Redis)
	}
	n := r.Redis.Nodes[0]
	if len(r.Redis.Nodes) != 1 || n.Address != x.sched.Server.Addr() || n.LastAudit == nil ||
		n.LastAudit.Reason != "start" || len(n.Gaps) != 1 || n.Gaps[0].Last != "subscribed" {
		t.Errorf("%+v", n)
	}
	if got := fmt.Sprint(r.Redis.Namespaces); got != "[{shop 1 0 0 0} {other 0 0 0 0}]" {
		t.Errorf("namespaces %s", got)
	}
	if len(r.NATS.Streams) != 3 || r.NATS.DeadLetters == nil || *r.NATS.DeadLetters != 0 ||
		r.NATS.Streams[0].MaxAge != 7*24*3600 || r.NATS.Streams[0].Current != 1 {
		t.Errorf("%+v", r.NATS)
	}
}

// Problems come worst first.
func TestProblemsComeWorstFirst(t *testing.T) {
	t.Parallel()
	x := newInstallation(t)
	x.sched.SetDue(3)
	for _, subject := range []string{"timers.dead.a.b.c", "timers.fired.a.b.c"} {
		if _, err := x.js.Publish(t.Context(), subject, []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	stream, err := x.js.Stream(t.Context(), "TIMERS")
	if err != nil {
		t.Fatal(err)
	}
	config := stream.CachedInfo().Config
	config.MaxBytes, config.Discard = 1000, jetstream.DiscardNew
	if _, err := x.js.UpdateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	if err := x.js.DeleteStream(t.Context(), "TIMERS_RETRY"); err != nil {
		t.Fatal(err)
	}
	var r *status.Report
	testenv.Eventually(t, time.Minute, func() bool { r = x.report(); return r.Redis.Owed == 3 },
		"the timers to be owed")
	expect(t, r,
		"fail no timerd is alive: nothing fires until one runs; 3 timers are owed",
		"fail there is no stream TIMERS_RETRY",
		"fail TIMERS: it is full: ",
		"warn dead letters in TIMERS_DEAD: 1")
	answers(t, r, diag.Fail, "No timer is overdue, but a failure", diag.CheckUnattended)

	x.beat("a", map[string]string{"TIMERD_LEASE": "1s", "TIMERD_SWEEP_INTERVAL": "100ms"})
	x.beat("b", map[string]string{"TIMERD_LEASE": "2s", "TIMERD_SWEEP_INTERVAL": "100ms"})
	r = x.report()
	if !slices.ContainsFunc(r.Problems, func(p diag.Finding) bool {
		return p.Level == diag.Warn && p.Text == `TIMERD_LEASE is "1s" on a, "2s" on b`
	}) {
		t.Errorf("not told that they disagree: %+v", r.Problems)
	}
	r = x.overdue("; the cause is under streams")
	answers(t, r, diag.Fail, "Not firing", diag.CheckStreams)
	if a := r.Answer(); !a.Since.Equal(r.Redis.Overdue.Due) || a.Since.IsZero() {
		t.Errorf("not firing since %v", a.Since)
	}

	// A missing reason is reported too.
	if err := streams.Ensure(t.Context(), x.js, streams.Config{}); err != nil {
		t.Fatal(err)
	}
	config.MaxBytes = -1
	if _, err := x.js.UpdateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	answers(t, x.overdue("; no other check finds a cause"), diag.Fail, "Not firing", "")
}

// answers compares the answer of a report; cause is its check, "" for none.
func answers(t *testing.T, r *status.Report, level diag.Level, text, cause string) {
	t.Helper()
	a := r.Answer()
	got := ""
	if a.Cause != nil {
		got = a.Cause.Check
	}
	if a.Level != level || !strings.HasPrefix(a.Text, text) || got != cause {
		t.Errorf("the answer is %s %q because of %q, want %s %q because of %q", a.Level, a.Text, got, level, text,
			cause)
	}
}

// overdue waits until three timers are overdue and stand still, for a cause.
func (x *installation) overdue(cause string) (r *status.Report) {
	x.t.Helper()
	testenv.Eventually(x.t, time.Minute, func() error {
		r = x.report()
		first := r.Problems[0]
		if first.Level != diag.Fail || first.Check != diag.CheckOverdue || !strings.HasSuffix(first.Text, cause) ||
			!strings.HasPrefix(first.Text,
				"3 timers are overdue, due more than 2.2s ago and not settled; the oldest, app1:trans:notice:") ||
			!strings.Contains(first.Text, "; of app1:trans:notice; none was settled for ") {
			return fmt.Errorf("%+v", first)
		}
		return nil
	}, "the timers to be overdue")
	return r
}

// What no consumer reads is not said to be acknowledged: somebody may begin with it yet.
func TestFullStreamKeepsUnreadEvents(t *testing.T) {
	t.Parallel()
	x := newInstallation(t)
	x.beat("a", nil)
	for _, subject := range []string{"timers.fired.pay.b.c", "timers.fired.shop.b.c", "timers.fired.pay.b.c"} {
		if _, err := x.js.Publish(t.Context(), subject, nil); err != nil {
			t.Fatal(err)
		}
	}
	stream, err := x.js.Stream(t.Context(), "TIMERS")
	if err != nil {
		t.Fatal(err)
	}
	config := stream.CachedInfo().Config
	config.MaxMsgs, config.Discard = 3, jetstream.DiscardNew
	if _, err := x.js.UpdateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		reader, filter string
		reads          int
		purge          string
	}{
		{"pay", "timers.fired.pay.*.*", 2, ""},
		{"all", "timers.fired.*.*.*", 2, "nats stream purge TIMERS --seq=3 --force"},
		{"everything", "", 1, "nats stream purge TIMERS --seq=2 --force"},
		{"nothing", "timers.fired.shop.b.c", 0, ""},
	} {
		consumer, err := x.js.CreateConsumer(t.Context(), "TIMERS",
			jetstream.ConsumerConfig{Durable: c.reader, FilterSubject: c.filter,
				AckPolicy: jetstream.AckExplicitPolicy})
		if err != nil {
			t.Fatal(err)
		}
		for range c.reads {
			m, err := consumer.Next()
			if err == nil {
				err = m.DoubleAck(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		problems := x.report().Problems
		at := slices.IndexFunc(problems, func(p diag.Finding) bool {
			return strings.HasPrefix(p.Text, "TIMERS: it is full")
		})
		if at < 0 {
			t.Fatalf("%s: %+v", c.reader, problems)
		}
		if fix := problems[at].Fix; strings.Contains(fix, "purge") != (c.purge != "") ||
			!strings.Contains(fix, c.purge) {
			t.Errorf("after %s: %s", c.reader, fix)
		}
	}
}

// Where one of the servers is away, the report has the other.
func TestOneServerIsAway(t *testing.T) {
	t.Parallel()
	x := newInstallation(t)
	x.beat("a", nil)
	away := diag.Finding{Text: "it does not answer", Fix: "start it"}
	from := status.Sources{Schedule: x.sched.Schedule, NoNATS: away}
	r := from.Gather(t.Context())
	expect(t, r, "fail the state of the streams is unknown, and timers wait in Redis if the timerds do not reach "+
		"NATS either: it does not answer")
	if r.NATS != nil || r.Redis == nil || len(r.Redis.Timerds) != 1 {
		t.Errorf("%+v", r)
	}
	from = status.Sources{NoRedis: away, JetStream: x.js}
	r = from.Gather(t.Context())
	expect(t, r, "fail the state of the timers and timerds is unknown: it does not answer")
	if r.Redis != nil || r.NATS == nil || len(r.NATS.Streams) != 3 {
		t.Errorf("%+v", r)
	}
	answers(t, r, diag.Fail, "Not known whether timers fire: Redis does not answer", diag.CheckRedis)

	x.sched.Server.Stop() // after the connection was made
	x.nats.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	r = status.Sources{Schedule: x.sched.Schedule, JetStream: x.js}.Gather(ctx)
	if !r.Failed() || len(r.Problems) < 2 {
		t.Errorf("%+v", r)
	}
}

// The report has a user's missing right, and none of its consequences.
func TestReportOfLackingRights(t *testing.T) {
	t.Parallel()
	x := newInstallation(t)
	client := x.sched.Node.Server()
	take := func(right string) {
		t.Helper()
		if err := client.Do(t.Context(), "ACL", "SETUSER", "default", "+@all", right).Err(); err != nil {
			t.Fatal(err)
		}
	}
	take("-zadd")
	expect(t, x.report(), "fail user default lacks +zadd")
	take("-config|get")
	x.beat("a", nil)
	expect(t, x.report(), "warn user default lacks +config|get")
}

// A failing readiness check of a living timerd is reported with its name, unless a server explains it. A producer of
// timers can write there.
func TestTimerdsReportTheirFaults(t *testing.T) {
	t.Parallel()
	x := newInstallation(t)
	self := schedule.Self{Instance: "a", Version: "v1", Counts: &schedule.Counts{Wrong: []schedule.Wrong{
		{Check: "keyspace events", Text: "no canary came back\x1b"}, {Check: status.ReadyRedis, Text: "dial: timeout"},
		{Check: "unknown", Text: "x"},
		{Check: "retry consumer", Text: strings.Repeat("y", 1000)},
		{Check: status.ReadyJetStream, Text: "NATS is away"},
	}}}
	if _, err := x.sched.Node.Heartbeat(t.Context(), self, time.Hour); err != nil {
		t.Fatal(err)
	}
	x.beat("b", nil)
	r := x.report()
	expect(t, r, "fail a: dial: timeout", "fail a: NATS is away", "fail a: yyy", "fail a: no canary came back%1B")
	for _, check := range []string{"claims", status.ReadyJetStream, "retry consumer", "keyspace events"} {
		if !r.Problems.Has(diag.Fail, check) {
			t.Errorf("no failure of %s: %+v", check, r.Problems)
		}
	}
	if slices.ContainsFunc(r.Problems, func(f diag.Finding) bool { return len(f.Text) > 600 }) {
		t.Errorf("a text is too long: %+v", r.Problems)
	}
	expect(t, status.Sources{Schedule: x.sched.Schedule, NoNATS: diag.Finding{Text: "away", Fix: "start it"}}.Gather(
		t.Context()),
		"fail the state of the streams is unknown", "fail a: dial: timeout", "fail a: no canary came back%1B")
}

// A single report cannot see a drain slower than itself. A living timerd has, and then it is no standstill.
func TestSlowDrainIsNoStandstill(t *testing.T) {
	t.Parallel()
	x := newInstallation(t)
	ago := time.Now().Add(-time.Hour)
	if err := x.sched.Client.ZAdd(t.Context(), keys.Single.Due(),
		redis.Z{Score: float64(ago.UnixMilli()), Member: "shop:a:b:1"}).Err(); err != nil {
		t.Fatal(err)
	}
	for _, drains := range []bool{false, true} {
		self := schedule.Self{Instance: "a", Since: time.Now().Add(time.Hour), Counts: &schedule.Counts{Drains: drains}}
		if _, err := x.sched.Node.Heartbeat(t.Context(), self, time.Hour); err != nil {
			t.Fatal(err)
		}
		level, want := diag.Fail, "none was settled for"
		if drains {
			level, want = diag.Warn, "they become fewer, but slowly"
		}
		r := x.report()
		i := slices.IndexFunc(r.Problems, func(f diag.Finding) bool { return f.Check == diag.CheckOverdue })
		if i < 0 || r.Problems[i].Level != level || !strings.Contains(r.Problems[i].Text, want) {
			t.Errorf("drains %t: %+v", drains, r.Problems)
		}
		answers(t, r, level, map[bool]string{false: "Not firing", true: "Firing late"}[drains], "")
	}
}
