package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// repeats writes a file and returns its name.
func repeats(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "repeats.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// whatRepeats returns the serials of all repetitions: each arming, and each change, gives another one.
func whatRepeats(t *testing.T, rdb redis.UniversalClient) string {
	t.Helper()
	found, err := rdb.ZRangeWithScores(t.Context(), keys.Single.Repeat(), 0, -1).Result()
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(found)
}

// withoutTimes replaces the parts that depend on the time of the test.
func withoutTimes(text string) string {
	return regexp.MustCompile(`(?m)(next +).*$|\d{4}-\d\d-\d\dT[\d:.]+Z`).ReplaceAllString(text, "${1}<time>")
}

// repeat apply shows its changes, asks, and makes the timers those of the file.
func TestRepeatApply(t *testing.T) {
	testenv.NoLeaks(t)
	rdb := startRedis(t).Client()
	const first = `repeat:
- key: shop:stock:count:1
  every: 5m
  payload: {all: true}
- key: shop:report:daily:1
  cron: 0 9 * * 1-5
  tz: Europe/Berlin
  late: 1h
  unless: shop:report:off:1
  if: 'shop:report:on'
- {key: 'shop:old:job:1', every: 1h}
`
	added := `+ shop:stock:count:1
    repeat   every 5m0s
    payload  {"all":true}
    next     <time>
+ shop:report:daily:1
    repeat   cron 0 9 * * 1-5 Europe/Berlin
    late     1h
    unless   shop:report:off:1
    if       shop:report:on
    next     <time>
+ shop:old:job:1
    repeat   every 1h0m0s
    next     <time>
`
	file := repeats(t, first)
	if out := withoutTimes(ok(t, "repeat", "apply", "-f", file,
		"--dry-run")); out != added+"3 to add, 0 to change, 0 to remove, 0 unchanged\n" {
		t.Errorf("--dry-run:\n%s", out)
	}
	if got := whatRepeats(t, rdb); got != "[]" {
		t.Errorf("--dry-run has set %s", got)
	}
	if out := withoutTimes(
		ok(t, "repeat", "apply", "-f", file)); out != added+"3 added, 0 changed, 0 removed, 0 unchanged\n" {
		t.Errorf("the first time:\n%s", out)
	}
	set := whatRepeats(t, rdb)
	if err := rdb.PExpire(t.Context(), "shop:old:job:1", 2*time.Hour).Err(); err != nil { // which moves one occurrence
		t.Fatal(err)
	}
	if out := ok(t, "repeat", "apply", "-f", file, "--prune",
		"shop"); out != "0 added, 0 changed, 0 removed, 3 unchanged\n" {
		t.Errorf("again:\n%s", out)
	}
	if got := whatRepeats(t, rdb); got != set {
		t.Errorf("again: %s, want %s as before", got, set)
	}
	if ttl := rdb.PTTL(t.Context(), "shop:old:job:1").Val(); ttl < time.Hour {
		t.Errorf("again: the occurrence that was moved is due in %v", ttl)
	}
	if out := ok(t, "get", "shop:report:daily:1", "--json"); !strings.Contains(out,
		`"repeat":"cron 0 9 * * 1-5 Europe/Berlin","occurrence":1`) || !strings.Contains(out, `"late":3600000,`) ||
		!strings.Contains(out, `"unless":"shop:report:off:1","if":"shop:report:on"`) {
		t.Errorf("the daily one: %s", out)
	}

	// A payload changes, one is new, and one is gone; others have a repetition beside, and a single timer.
	for _, call := range [][]any{
		{"timer_repeat", 1, "pay:old:job:1", "", "EVERY", 60_000},
		{"timer_set", 1, "shop:old:job:2", "", "PX", 3_600_000},
	} {
		if err := rdb.Do(t.Context(), append([]any{"FCALL"}, call...)...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	second := strings.Replace(first, "all: true", "all: false", 1)
	second = strings.Replace(second, "- {key: 'shop:old:job:1', every: 1h}", "- {key: 'shop:new:job:1', every: 1h}", 1)
	due := rdb.PExpireTime(t.Context(), "shop:stock:count:1").Val()
	changed := `~ shop:stock:count:1
    payload  {"all":true} → {"all":false}
    next     <time>
+ shop:new:job:1
    repeat   every 1h0m0s
    next     <time>
`
	file = repeats(t, second)
	if out := withoutTimes(ok(t, "repeat", "apply", "--file", file, "--dry-run", "--prune", "shop")); out != changed+`- shop:old:job:1
    repeat   every 1h0m0s
1 to add, 1 to change, 1 to remove, 1 unchanged
` {
		t.Errorf("--dry-run of a change:\n%s", out)
	}
	if out := withoutTimes(ok(t, "repeat", "apply", "--file",
		file)); out != changed+"1 added, 1 changed, 0 removed, 1 unchanged\n" {
		t.Errorf("a change:\n%s", out)
	}
	if now := rdb.PExpireTime(t.Context(), "shop:stock:count:1").Val(); now != due {
		t.Errorf("the one that has changed is due at %v, want %v as before", now, due)
	}
	code, out, errs := timerd(t, second, "repeat", "apply", "-f", "-", "--prune", "shop:*")
	if code != exitOK || errs != "" ||
		out != "- shop:old:job:1\n    repeat   every 1h0m0s\n0 added, 0 changed, 1 removed, 3 unchanged\n" {
		t.Errorf("--prune: %d\n%s%s", code, out, errs)
	}
	if n := rdb.Exists(t.Context(), "shop:old:job:1", "shop:old:job:2", "pay:old:job:1").Val(); n != 2 {
		t.Errorf("%d keys are there, want the single timer and that of another app", n)
	}
	if out := ok(t, "repeat", "apply", "-f", repeats(t, "repeat: []"), "--prune", "shop"); !strings.HasSuffix(out,
		"0 added, 0 changed, 3 removed, 0 unchanged\n") {
		t.Errorf("an empty list:\n%s", out)
	}
	if got := whatRepeats(t, rdb); !strings.HasPrefix(got, "[{") || !strings.HasSuffix(got, "pay:old:job:1}]") ||
		strings.Count(got, "}") != 1 {
		t.Errorf("there is %s, want that of the other app alone", got)
	}
}

// In any spelling, an entry gets into Redis as the file has it: applied a second time it changes nothing, also after a
// timerd's planning.
func TestRepeatApplyIsIdempotent(t *testing.T) {
	testenv.NoLeaks(t)
	server := startRedis(t)
	rdb := server.Client()
	entries := []string{
		"every: 100ms", "every: 1500ms", "every: 25h1m1.001s", "every: 3650d", "every: 60000ms",
		"cron: '  0   9 * jan mon-fri '", "cron: '@Daily'", "cron: 0 9 * * 5#2", "cron: 15 30 9 L * *",
		"cron: '*/15,3 0-5/2 1,15 FEB *'",
		"cron: '@hourly'\n  tz: UTC", "cron: '@hourly'\n  tz: Etc/UTC",
		"cron: 0 0 * * 7\n  tz: America/Argentina/Buenos_Aires",
		"every: 1s\n  late: 0", "every: 1s\n  late: 0\n  drop_late: true", "every: 1s\n  late: 1d\n  drop_late: false",
		"every: 1s\n  from: 2020-01-01T00:00:00.0005Z\n  until: 9999-12-31T23:59:59.9999Z", "every: 1h\n  from: '@1'",
		"cron: '@yearly'\n  from: 2030-06-01T00:00:00+02:00\n  times: 2147483647\n  catchup: 3650d",
		"every: 1h\n  payload: ''", "every: 1h\n  payload: 'a:;R=1:b'", "every: 1h\n  payload: !!binary AAECAw==",
		"every: 1h\n  payload: \"\\xff\\0\"",
	}
	var text strings.Builder
	text.WriteString("repeat:\n")
	for i, e := range entries {
		fmt.Fprintf(&text, "- key: 'a:b:c:%d'\n  %s\n", i, e)
	}
	file := repeats(t, text.String())
	if out := ok(t, "repeat", "apply", "-f", file); !strings.HasSuffix(out,
		fmt.Sprintf("\n%d added, 0 changed, 0 removed, 0 unchanged\n", len(entries))) {
		t.Fatal(out)
	}
	want := fmt.Sprintf("0 added, 0 changed, 0 removed, %d unchanged\n", len(entries))
	if out := ok(t, "repeat", "apply", "-f", file); out != want {
		t.Errorf("again:\n%s", out)
	}
	nodes, err := schedule.New(rdb, 1000).Nodes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, patience, func() bool {
		if claimed := nodes[0].Claim(t.Context(), []schedule.ClaimRequest{{Partition: keys.Single}},
			time.Hour)[0]; claimed.Err != nil {
			t.Fatal(claimed.Err)
		}
		n, err := rdb.ZCount(t.Context(), keys.Single.Repeat(), "-inf", "(0").Result()
		return err == nil && n == 0
	}, "all to be planned")
	if out := ok(t, "repeat", "apply", "-f", file); out != want {
		t.Errorf("planned:\n%s", out)
	}
}

// An occurrence that is on its way, or held, is no reason to set a repetition again. It may still arrive after a
// removal.
func TestRepeatApplyDuringAnOccurrence(t *testing.T) {
	testenv.NoLeaks(t)
	server := startRedis(t)
	rdb := server.Client()
	file := repeats(t, "repeat:\n- {key: 'shop:stock:count:1', every: 100ms, payload: p}\n")
	ok(t, "repeat", "apply", "-f", file)
	due := rdb.PExpireTime(t.Context(), "shop:stock:count:1").Val()
	nodes, err := schedule.New(rdb, 1000).Nodes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, patience, func() bool {
		now, err := rdb.Time(t.Context()).Result()
		return err == nil && now.UnixMilli() > due.Milliseconds()
	}, "it to be due")
	if claimed := nodes[0].Claim(t.Context(), []schedule.ClaimRequest{{Partition: keys.Single}},
		time.Hour)[0]; claimed.Err != nil || len(claimed.Firings) != 1 {
		t.Fatalf("%+v", claimed)
	}
	if out := ok(t, "repeat", "apply", "-f", file); out != "0 added, 0 changed, 0 removed, 1 unchanged\n" {
		t.Errorf("while it is firing:\n%s", out)
	}
	code, out, errs := timerd(t, "repeat: []", "repeat", "apply", "-f", "-", "--prune", "*")
	if code != exitOK || !strings.HasSuffix(out, "0 added, 0 changed, 1 removed, 0 unchanged\n") ||
		errs != "timerd: removed while an occurrence was on its way, which may still arrive: shop:stock:count:1\n" {
		t.Errorf("--prune while it is firing: %d\n%s%s", code, out, errs)
	}
	if got := whatRepeats(t, rdb); got != "[]" {
		t.Errorf("it repeats: %s", got)
	}
}

// A file with faults changes nothing; a refusal of Redis does not stop the other changes.
func TestRepeatApplyRefuses(t *testing.T) {
	testenv.NoLeaks(t)
	rdb := startRedis(t).Client() // takes payloads of up to 1,000 bytes
	for text, want := range map[string]string{
		"repeat:\n- {key: 'a:b:c:d', every: 1h}\n- {key: 'a:b:c', every: 1s, tz: UTC}\n- {}": `line 3: key: "a:b:c": ` +
			`|line 3: tz: goes with cron|line 4: key is missing|line 4: want either every or cron`,
		"repeat:\n- {key: 'a:b:c:d', every: 1h}\n- {key: 'a:b:c:e', cron: 0 0 30 2 *}\n": "line 3: cron: no " +
			"occurrence in the eight years after 20",
	} {
		file := repeats(t, text)
		code, out, errs := timerd(t, "", "repeat", "apply", "-f", file)
		lines := strings.Split(strings.TrimSuffix(errs, "\n"), "\n")
		faults := strings.Split(want, "|")
		if code != exitUsage || out != "" || len(lines) != len(faults)+1 ||
			lines[len(lines)-1] != "timerd: nothing was changed" {
			t.Errorf("%s: %d\n%s%s", text, code, out, errs)
			continue
		}
		for i, fault := range faults {
			if !strings.HasPrefix(lines[i], "timerd: "+file+": "+fault) {
				t.Errorf("it says %s\nwant %s", lines[i], fault)
			}
		}
	}
	if got := whatRepeats(t, rdb); got != "[]" {
		t.Errorf("a file with faults has set %s", got)
	}
	text := fmt.Sprintf("repeat:\n- {key: 'a:b:c:d', every: 1h, payload: %s}\n- {key: 'a:b:c:e', every: 1h}\n",
		strings.Repeat("x", 1001))
	code, out, errs := timerd(t, text, "repeat", "apply", "-f", "-")
	if code != exitFailed || !strings.HasSuffix(out, "\n1 added, 0 changed, 0 removed, 0 unchanged, 1 refused\n") ||
		!strings.HasPrefix(errs, "timerd: -: line 2: ") || !strings.Contains(errs, "1001 bytes") {
		t.Errorf("a payload that is too large: %d\n%s%s", code, out, errs)
	}
	over := repeats(t, "repeat:\n- {key: 'a:b:c:f', every: 1h, until: 2026-01-01T00:00:00Z}\n")
	out = ok(t, "repeat", "apply", "-f", over)
	if out != "0 added, 0 changed, 0 removed, 0 unchanged, 1 over\n" {
		t.Errorf("a repetition that is over:\n%s", out)
	}

	for args, want := range map[string]string{
		"repeat apply":                           "want -f FILE",
		"repeat apply file.yaml":                 "want -f FILE, and no arguments",
		"repeat apply -f x --prune a:b:c:d":      "--prune: namespace",
		"repeat apply -f x --prune ''":           "--prune: namespace",
		"repeat apply -f /dev/null --prune shop": "/dev/null: not YAML: no documents in stream",
	} {
		code, _, errs := timerd(t, "", quoted(args)...)
		if code != exitUsage || !strings.Contains(errs, want) {
			t.Errorf("timerd %s: %d %s\nwant %s", args, code, errs, want)
		}
	}
	if code, _, errs := timerd(t, "", "repeat", "apply", "-f", "/nonexistent"); code != exitFailed ||
		!strings.Contains(errs, "--file: open /nonexistent: ") {
		t.Errorf("no file: %d %s", code, errs)
	}
	if err := rdb.FunctionFlush(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	code, out, errs = timerd(t, "repeat:\n- {key: 'a:b:c:g', every: 1h}", "repeat", "apply", "-f", "-")
	if code != exitFailed || !strings.HasSuffix(out, "0 added, 0 changed, 0 removed, 0 unchanged\n") ||
		!strings.Contains(errs, "function library is not in this Redis") ||
		!strings.Contains(errs, "apply the file again") {
		t.Errorf("without the library: %d\n%s%s", code, out, errs)
	}
}

// After an interruption the file is applied again, and the rest is done.
func TestRepeatApplyIsInterrupted(t *testing.T) {
	testenv.NoLeaks(t)
	rdb := startRedis(t).Client()
	const n = 2000
	var text strings.Builder
	text.WriteString("repeat:\n")
	for i := range n {
		fmt.Fprintf(&text, "- {key: 'shop:m:t:%d', every: 1h}\n", i)
	}
	file := repeats(t, text.String())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out, errs testenv.Output
	ended := make(chan int, 1)
	go func() { ended <- run(ctx, []string{"repeat", "apply", "-f", file}, strings.NewReader(""), &out, &errs) }()
	testenv.Eventually(t, patience, func() bool { return rdb.ZCard(t.Context(), keys.Single.Repeat()).Val() > 0 },
		"the first one to be set")
	cancel()
	set := 0
	if code := <-ended; code == exitOK {
		t.Logf("all were set before the interruption")
		set = n
	} else if _, err := fmt.Sscanf(out.String()[strings.LastIndex(strings.TrimSpace(out.String()), "\n")+1:],
		"%d added", &set); err != nil ||
		!strings.Contains(errs.String(), "interrupted: apply the file again for the rest") {
		t.Fatalf("exit code %d: %v\n%s", code, err, &errs)
	}
	got := int(rdb.ZCard(t.Context(), keys.Single.Repeat()).Val())
	if got != set && got != set+1 { // the last reply may be lost
		t.Errorf("%d are set, and it says %d", got, set)
	}
	if out := ok(t, "repeat", "apply", "-f", file); !strings.HasSuffix(out,
		fmt.Sprintf("%d added, 0 changed, 0 removed, %d unchanged\n", n-got, got)) {
		t.Errorf("again: %s", out[max(0, len(out)-200):])
	}
}

func TestRepeatApplyInACluster(t *testing.T) {
	testenv.NoLeaks(t)
	cluster := testenv.Cluster(t, 3, false)
	rdb := cluster.Client()
	if _, err := schedule.New(rdb, 1000).Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	testenv.SetVariables(t, map[string]string{"TIMERD_REDIS_URL": cluster.URL(), "TIMERD_REDIS_MODE": "cluster"})
	var text strings.Builder
	text.WriteString("repeat:\n")
	const n = 50
	for i := range n {
		fmt.Fprintf(&text, "- {key: 'shop:m:t:%d', every: 1h}\n- {key: 'shop:n:t:%d', cron: '@daily'}\n", i, i)
	}
	for i, want := range []string{"100 added, 0 changed, 0 removed, 0 unchanged\n",
		"0 added, 0 changed, 0 removed, 100 unchanged\n"} {
		code, out, errs := timerd(t, text.String(), "repeat", "apply", "-f", "-", "--prune", "*")
		if code != exitOK || !strings.HasSuffix(out, want) {
			t.Errorf("call %d: %d\n%s%s", i+1, code, out, errs)
		}
	}
	code, out, errs := timerd(t, "repeat: []", "repeat", "apply", "-f", "-", "--prune", "shop:m")
	if code != exitOK || !strings.HasSuffix(out, "0 added, 0 changed, 50 removed, 0 unchanged\n") {
		t.Errorf("--prune: %d\n%s%s", code, out, errs)
	}
}
