package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/docs/schemas"
	"github.com/timerd-io/timerd/internal/devserver"
	"github.com/timerd-io/timerd/internal/policy"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// exported is a Redis with a timer of every kind.
type exported struct {
	t   *testing.T
	rdb *redis.Client
	s   *schedule.Schedule
}

func (x *exported) do(args ...any) {
	x.t.Helper()
	if err := x.rdb.Do(x.t.Context(), args...).Err(); err != nil {
		x.t.Fatalf("%q: %v", args, err)
	}
}

func (x *exported) now() int64 {
	x.t.Helper()
	now, err := x.rdb.Time(x.t.Context()).Result()
	if err != nil {
		x.t.Fatal(err)
	}
	return now.UnixMilli()
}

func (x *exported) awaitClock(at int64) {
	x.t.Helper()
	testenv.Eventually(x.t, time.Minute, func() bool { return x.now() > at }, "the clock to pass")
}

func (x *exported) retry(r schedule.Retry, key string) {
	x.t.Helper()
	var err error
	if r.Key, err = keys.Parse(key); err == nil {
		_, _, err = x.s.Retry(x.t.Context(), r)
	}
	if err != nil {
		x.t.Fatal(err)
	}
}

// populate sets the timers. Afterwards app3:m:t:claimed is claimed, and no other one.
func (x *exported) populate() {
	x.t.Helper()
	const trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	nodes, err := x.s.Nodes(x.t.Context())
	if err != nil {
		x.t.Fatal(err)
	}
	due := x.now() + 500
	x.do("FCALL", "timer_set", 1, "app1:m:t:options", `{"a": 1.10}`, "PX", 3600_000, "ATTEMPT", 3, "LATE", 5000, "DROP",
		"TRACE", trace)
	x.do("FCALL", "timer_set", 1, "app1:m:t:\xff:\x00", "\x00\xff\n", "PX", 3600_000, "LATE", 0)
	x.do("FCALL", "timer_set", 1, "app1:m:t:empty", "", "PX", 3600_000)
	x.do("FCALL", "timer_repeat", 1, "app1:m:t:every", "e", "EVERY", 3600_000, "TIMES", 5, "CATCHUP", 1000)
	x.do("FCALL", "timer_repeat", 1, "app1:m:t:cron", "c", "CRON", "0 3 * * *", "TZ", "Europe/Berlin")
	x.do("SET", "app1:m:t:plain", "v", "PX", 3600_000)
	x.do("RPUSH", "app1:m:t:list", "v")
	x.do("PEXPIRE", "app1:m:t:list", 3600_000)
	hints := []schedule.Hint{{Kind: schedule.Touched, Key: "app1:m:t:plain"},
		{Kind: schedule.Touched, Key: "app1:m:t:list"}}
	if _, err := nodes[0].Observe(x.t.Context(), hints, time.Now()); err != nil {
		x.t.Fatal(err)
	}
	x.retry(schedule.Retry{
		EventID: "e1", Due: schedule.Millis(due + 7200_000), Attempt: 2, Payload: []byte("beside"), TraceParent: trace,
		TraceState: "a=b;c",
		Late:       policy.Limit{Given: true, Most: time.Minute},
		Origin:     schedule.Origin{Due: schedule.Millis(due - 5000), Attempt: 1},
		Repeat:     "every 5m0s", Occurrence: 7,
	}, "app1:m:t:plain")
	x.retry(schedule.Retry{
		EventID: "e2", Due: schedule.Millis(due - 86400_000), Attempt: 4, Status: schedule.PayloadTooLarge,
		Origin:   schedule.Origin{Due: schedule.Millis(due - 90000_000), Attempt: 1},
		Replayed: schedule.Millis(due - 88000_000),
	}, "app1:m:t:again")
	for _, key := range []string{"app1:m:t:held", "app1:m:t:over", "app2:m:t:aside", "app3:m:t:claimed"} {
		x.do("FCALL", "timer_set", 1, key, "due", "PXAT", due)
	}
	x.do("FCALL", "timer_repeat", 1, "app1:m:t:occurrence", "o", "EVERY", 500, "TIMES", 1000_000)
	if code, _, errs := timerd(x.t, "", "hold", "app1"); code != 0 { // which warns that no timerd runs
		x.t.Fatal(errs)
	}
	x.awaitClock(due + 500)
	x.do("FCALL", "timer_set", 1, "app1:m:t:over", "newer", "PX", 3600_000) // which makes the older one owed
	c := nodes[0].Claim(x.t.Context(), []schedule.ClaimRequest{{Partition: keys.Single}}, time.Hour)[0]
	if c.Err != nil || len(c.Firings) != 1 || c.Parked != 1 {
		x.t.Fatalf("claimed %d, set aside %d, %v; want 1 and 1", len(c.Firings), c.Parked, c.Err)
	}
	due = x.now() + 100
	x.do("FCALL", "timer_set", 1, "app3:m:t:owed", "owed", "PXAT", due,
		"UNLESS", "{app3:m:t:owed}\n%", "IF", ";{app3:m:t:owed}")
	x.do("FCALL", "timer_set", 1, "app3:m:t:twice", "first", "PXAT", due)
	x.awaitClock(due)
	x.do("FCALL", "timer_set", 1, "app3:m:t:twice", "second", "PX", 3600_000)
}

// exportAll exports a timer of every kind, one of them claimed.
func exportAll(t *testing.T) (lines string) {
	t.Helper()
	server := testenv.Redis(t, devserver.ACL("user default on nopass ~* &* +@all\n"+
		"user timerd on nopass ~app1:* ~app3:* ~timerd:* &* +@all\n"))
	testenv.SetVariables(t, map[string]string{"TIMERD_REDIS_URL": server.URL(0)})
	x := &exported{t: t, rdb: server.Client()}
	x.s = schedule.New(server.Client(func(o *redis.Options) { o.Username, o.Password = "timerd", "-" }), 1000)
	if _, err := x.s.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	x.populate()
	code, lines, errs := timerd(t, "", "export")
	if code != exitFailed || !strings.Contains(errs, "app3:m:t:claimed, due ") ||
		!strings.Contains(errs, "17 written, 1 claimed") {
		t.Fatalf("exit code %d\n%s%s", code, lines, errs)
	}
	return lines
}

// setExported sets exported timers twice, and checks that they are exported as before.
func setExported(t *testing.T, lines string) {
	t.Helper()
	for _, want := range []string{"17 set, 0 there already, 0 bad\n", "0 set, 17 there already, 0 bad\n"} {
		if code, out, errs := timerd(t, lines, "set", "--from", "-"); code != 0 || out != want {
			t.Fatalf("exit code %d\n%s%swant %s", code, out, errs, want)
		}
	}
	code, again, errs := timerd(t, "", "export")
	if code != 0 {
		t.Errorf("exit code %d\n%s", code, errs)
	}
	here, there := sortedLines(strings.ReplaceAll(lines, `"state":"held"`, `"state":"owed"`)), sortedLines(again)
	for i, line := range here {
		if i >= len(there) || there[i] != line {
			t.Errorf("exported\n\t%s\nset and exported again\n\t%s", line,
				strings.Join(there[min(i, len(there)):min(i+1, len(there))], ""))
		}
	}
	if len(there) != len(here) {
		t.Errorf("%d lines, want %d", len(there), len(here))
	}
}

// An exported timer of any kind is set elsewhere as it was, and once.
func TestExportRoundTrip(t *testing.T) {
	testenv.NoLeaks(t)
	lines := exportAll(t)
	startRedis(t)
	setExported(t, lines)
	for _, want := range []string{"app1:m:t:every pending", "app1:m:t:plain pending", "app3:m:t:twice pending"} {
		key, state, _ := strings.Cut(want, " ")
		if got := ok(t, "get", key); !strings.Contains(got, state) {
			t.Errorf("get %s: %s", key, got)
		}
	}
}

func TestExportRoundTripToACluster(t *testing.T) {
	testenv.NoLeaks(t)
	lines := exportAll(t)
	cluster := testenv.Cluster(t, 3, false)
	if _, err := schedule.New(cluster.Client(), 1000).Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	testenv.SetVariables(t, map[string]string{"TIMERD_REDIS_URL": cluster.URL(), "TIMERD_REDIS_MODE": "cluster"})
	setExported(t, lines)
}

// What timerd's user may not do is a fault of each line that needs it, and the others are set.
func TestSetFromWithoutRights(t *testing.T) {
	testenv.NoLeaks(t)
	server := testenv.Redis(t, devserver.ACL("user default on nopass ~* &* +@all\n"+
		"user keys on nopass ~app1:* ~timerd:* &* +@all\nuser commands on nopass ~* &* +@all -zadd\n"))
	if _, err := schedule.New(server.Client(), 1000).Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	attend(t, server)
	due := time.Now().Add(time.Hour).UnixMilli()
	lines := fmt.Sprintf(
		`{"key":"app1:m:t:1","due":%d}`+"\n"+`{"key":"app2:m:t:1","due":%[1]d}`+"\n"+`{"key":"app2:m:t:2","due":1000}`+"\n", due)
	for _, c := range []struct {
		user string
		said []string
		set  int64
	}{
		{"commands", []string{"line 1: ", "may not run ZADD on timerd:",
			"It, the next 2 lines and the rest may not be set", "0 set, 0 there already, 0 bad"}, 0},
		{"keys", []string{"line 2: timerd's user may not write the key", "2 set, 0 there already, 1 bad"}, 1},
	} {
		testenv.SetVariables(t, map[string]string{"TIMERD_REDIS_URL": strings.Replace(server.URL(0), "://",
			"://"+c.user+":-@", 1)})
		code, out, errs := timerd(t, lines, "set", "--from", "-")
		for _, said := range c.said {
			if code != exitFailed || !strings.Contains(out+errs, said) {
				t.Errorf("%s: exit code %d, want %q\n%s%s", c.user, code, said, out, errs)
			}
		}
		if n := server.Client().ZCard(t.Context(), keys.Single.Due()).Val(); n != c.set {
			t.Errorf("%s: %d timers, want %d", c.user, n, c.set)
		}
	}
}

// The schema describes every member of a line, and no other.
func TestTimerLineFitsItsSchema(t *testing.T) {
	t.Parallel()
	text, _ := schemas.Text("timer")
	var schema struct {
		Properties map[string]struct{ Properties map[string]any }
	}
	if err := json.Unmarshal([]byte(text), &schema); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		members   []string
		described []string
	}{
		{membersOf(reflect.TypeFor[timerLine]()), slices.Sorted(maps.Keys(schema.Properties))},
		{membersOf(reflect.TypeFor[schedule.ExportedRepetition]()),
			slices.Sorted(maps.Keys(schema.Properties["repetition"].Properties))},
	} {
		if !slices.Equal(c.members, c.described) {
			t.Errorf("a line has %v, the schema describes %v", c.members, c.described)
		}
	}
}

// membersOf returns the names of a type's JSON members, sorted.
func membersOf(of reflect.Type) []string {
	var names []string
	for _, field := range reflect.VisibleFields(of) {
		if name, _, _ := strings.Cut(field.Tag.Get("json"), ","); name != "" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func sortedLines(text string) []string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	slices.Sort(lines)
	return lines
}

// A file that was not done to its end is gone on with behind the lines that are done.
func TestSetFromGoesOn(t *testing.T) {
	testenv.NoLeaks(t)
	startRedis(t)
	const count, stop = 1500, 1200
	file := filepath.Join(t.TempDir(), "timers.jsonl")
	write := func(at string) {
		var text strings.Builder
		for i := range count {
			line := fmt.Sprintf(`{"key":"app:m:t:%d","px":3600000}`, i)
			if i == stop {
				line = at
			}
			text.WriteString(line + "\n")
		}
		if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("\xff\xfe") // UTF-16 ends it
	code, out, errs := timerd(t, "", "set", "--from", file)
	if code != exitFailed || out != fmt.Sprintf("%d set, 0 there already, 0 bad\n", stop) ||
		!strings.Contains(errs, "UTF-16") {
		t.Fatalf("exit code %d\n%s%s", code, out, errs)
	}
	write(`{"key":"three:part:key","px":1000}`)
	code, out, errs = timerd(t, "", "set", "--from", file)
	if code != exitFailed || !strings.Contains(errs, fmt.Sprintf("going on behind line %d, as %s.done says", stop,
		file)) ||
		!strings.Contains(errs, fmt.Sprintf("line %d: key", stop+1)) ||
		out != fmt.Sprintf("%d set, 0 there already, 1 bad\n", count-1) {
		t.Errorf("exit code %d\n%s%s", code, out, errs)
	}
	if _, err := os.Stat(file + ".done"); !os.IsNotExist(err) {
		t.Errorf("the note is still there after the last line: %v", err)
	}

	write("\xff\xfe")
	_, _, _ = timerd(t, "", "set", "--from", file)
	if err := os.WriteFile(file, []byte(strings.Repeat("another file\n", 10_000)), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, errs := timerd(t, "", "set", "--from", file); code != exitFailed ||
		!strings.Contains(errs, "delete it to begin with the first line") {
		t.Errorf("the note of another file: exit code %d\n%s", code, errs)
	}
}
