package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
)

// set --from sets the good lines of a file, reports each bad one, and counts all.
func TestSetFrom(t *testing.T) {
	testenv.NoLeaks(t)
	startRedis(t) // takes payloads of up to 1,000 bytes
	at := time.Now().Add(time.Hour).UnixMilli()
	lines := []struct {
		text, fault string // no fault: it sets a timer
	}{
		{`{"key":"app:m:t:object","payload":{"order": 42, "total":1.10},"px":3600000}`, ""},
		{fmt.Sprintf(`{"key":"app:m:t:text","payload":"plain\ntext","at":%d,"attempt":3}`, at), ""},
		{`  `, ""},
		{` {"px":3600000,"key":"app:m:t:bytes","payload_base64":"AAH/","nx":true} `, ""},
		{`{"key":"app:m:t:object","payload":"again","px":3600000,"nx":true}`, ""},
		{`{"key":"three:part:key","px":1000}`, `key "three:part:key": `},
		{`{"px":1000}`, `key "": `},
		{`{"key":7,"px":1000}`, "key: want a string, got number"},
		{`{"key":"app:m:t:8"}`, "no time is given: want px or at"},
		{`{"key":"app:m:t:9","px":1000,"at":1000}`, "px and at exclude each other"},
		{`{"key":"app:m:t:10","px":0}`, "px is 0: want 1 or more"},
		{`{"key":"app:m:t:11","px":9223372036854775807}`, "px is 9223372036854775807: want at most 10 years"},
		{`{"key":"app:m:t:12","px":315576000001}`, "10 years"}, // says Redis
		{`{"key":"app:m:t:13","px":1.5}`, "px: want a whole number, got number 1.5"},
		{`{"key":"app:m:t:14","px":"soon"}`, "px: want a whole number, got string"},
		{`{"key":"app:m:t:15","at":1000}`, ""}, // long ago: it fires at once
		{`{"key":"app:m:t:16","px":1000,"nx":1}`, "nx: want true or false, got number"},
		{`{"key":"app:m:t:17","px":1000,"attempt":0}`, "attempt is 0: want a number from 1 to 2147483647"},
		{`{"key":"app:m:t:18","px":1000,"payload":1,"payload_base64":""}`,
			"payload and payload_base64 exclude each other"},
		{`{"key":"app:m:t:19","px":1000,"payload_base64":"!"}`, "payload_base64: illegal base64"},
		{`{"key":"app:m:t:19","px":1000,"drop_late":true}`, "drop_late goes with late"},
		{`{"key":"app:m:t:19","px":1000,"late":-1}`, "late is -1: want milliseconds from 0"},
		{`{"key":"app:m:t:19","px":1000,"late":"5m"}`, "late: want a whole number, got string"},
		{`{"key":"app:m:t:limit","px":3600000,"late":300000,"drop_late":true}`, ""},
		{`{"key":"app:m:t:20","px":1000,"ttl":1}`, `want a JSON object: unknown field "ttl"`},
		{`{"key":"app:m:t:21","px":1000} {"key":"app:m:t:21"}`, "want one JSON object, got "},
		{`{"key":"app:m:t:22","px":1000`, "want a JSON object, got the beginning of one"},
		{`app:m:t:23 1000`, "want a JSON object: invalid character"},
		{`["app:m:t:24",1000]`, "want a JSON object, got array"},
		{"{\"key\":\"app:m:t:\xff\",\"px\":1000}", "it is not UTF-8"},
		{`{"key":"app:m:t:26","px":1000,"payload":"` + strings.Repeat("x", 1001) + `"}`, "1001"}, // says Redis
		{`{"key":"app:m:t:27","px":1000,"key_base64":"YQ=="}`, "key and key_base64 exclude each other"},
		{`{"key":"app:m:t:28","due":1000,"nx":true}`, "it excludes px, at and nx"},
		{`{"key":"app:m:t:29","px":1000,"origin":"1000.1"}`, "a field of an exported timer and no due"},
		{`{"key":"app:m:t:30","due":253402300800000}`, "due is 253402300800000"},
		{`{"key":"app:m:t:31","due":1000,"origin":"x"}`, `origin is "x"`},
		{`{"key":"app:m:t:32","due":1000,"origin":"1000.1;L=1"}`, "origin is"},
		{`{"key":"app:m:t:33","due":1000,"traceparent":"a:b;L=1"}`, "traceparent: want one of W3C"},
		{`{"key":"app:m:t:34","due":1000,"repeat":"every 1s"}`, "repeat and occurrence go together"},
		{`{"key":"app:m:t:35","due":1000,"repetition":{"serial":1,"nominal":1,"from":1}}`,
			"repetition goes with repeat"},
		{`{"key":"app:m:t:36","due":1000,"payload":"` + strings.Repeat("x", 1001) + `"}`, "at most 1000 are allowed"},
		{`{"key":"app:m:t:empty","px":3600000}`, ""}, // without a line end
	}
	var text []string
	for _, l := range lines {
		text = append(text, l.text)
	}
	file := filepath.Join(t.TempDir(), "timers.jsonl")
	if err := os.WriteFile(file, []byte(strings.Join(text, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	code, out, errs := timerd(t, "", "set", "--from", file)
	if code != exitFailed || out != "6 set, 1 there already, 34 bad\n" {
		t.Errorf("exit code %d\n%s", code, out)
	}
	said := strings.Split(strings.TrimSpace(errs), "\n")
	for i, l := range lines {
		if l.fault == "" {
			continue
		}
		if label := fmt.Sprintf("timerd: line %d: ", i+1); !strings.HasPrefix(said[0], label) ||
			!strings.Contains(said[0], l.fault) {
			t.Fatalf("it says %s\nwant %s…%s", said[0], label, l.fault)
		}
		said = append(said[1:], "nothing more")
	}
	if said[0] != "nothing more" {
		t.Errorf("it says too much: %s", said[0])
	}
	for id, want := range map[string]string{"object": `{"order": 42, "total":1.10}`, "text": "plain\ntext",
		"bytes": "\x00\x01\xff", "empty": ""} {
		if got := ok(t, "get", "app:m:t:"+id, "--raw"); got != want {
			t.Errorf("the payload of %s is %q, want %q", id, got, want)
		}
	}
	if out := ok(t, "get", "app:m:t:text", "--json"); !strings.Contains(out, fmt.Sprintf(`"due":%d,`, at)) ||
		!strings.Contains(out, `"attempt":3,`) {
		t.Errorf("the timer with a time and an attempt: %s", out)
	}
	if out := ok(t, "get", "app:m:t:limit", "--json"); !strings.Contains(out, `"late":300000,`) {
		t.Errorf("the timer with a limit: %s", out)
	}
	if table := ok(t, "ls"); strings.Count(table, "\n") != 7 {
		t.Errorf("more than the good lines were set:\n%s", table)
	}

	if code, out, errs := timerd(t, `{"key":"app:m:t:json","px":3600000}`, "set", "--from", "-",
		"--json"); code != exitOK ||
		strings.Count(out, "\n") != 1 || !strings.Contains(out, `{"key":"app:m:t:json","due":`) ||
		errs != "timerd: 1 set, 0 there already, 0 bad\n" {
		t.Errorf("--json: %d\n%s%s", code, out, errs)
	}
	// Editors and shells of Windows begin a file with a byte order mark, and files that are joined have several.
	marked := "\ufeff{\"key\":\"app:m:t:m1\",\"px\":3600000}\r\n" +
		"\ufeff{\"key\":\"app:m:t:m2\",\"px\":3600000}\r\n\ufeff\r\n"
	if code, out, errs := timerd(t, marked, "set", "--from", "-"); code != exitOK ||
		out != "2 set, 0 there already, 0 bad\n" {
		t.Errorf("with byte order marks: %d\n%s%s", code, out, errs)
	}
	wide := "\xff\xfe{\x00}\x00\r\x00\n\x00"
	if code, out, errs := timerd(t, wide, "set", "--from", "-"); code != exitFailed ||
		!strings.HasPrefix(out, "0 set") || !strings.Contains(errs, "line 1 and the rest: it is UTF-16") {
		t.Errorf("of UTF-16: %d\n%s%s", code, out, errs)
	}
	if out := ok(t, "set", "--from", "/dev/null"); out != "0 set, 0 there already, 0 bad\n" {
		t.Errorf("of nothing: %s", out)
	}
	if code, _, errs := timerd(t, "", "set", "--from", "/nonexistent"); code != exitFailed ||
		!strings.Contains(errs, "--from: open /nonexistent: ") {
		t.Errorf("of no file: %d %s", code, errs)
	}
	if code, _, errs := timerd(t, "", "set", "--from", t.TempDir()); code != exitFailed ||
		!strings.Contains(errs, "line 1 and the rest: ") {
		t.Errorf("of a directory: %d %s", code, errs)
	}
}

func TestSetFromLargeFile(t *testing.T) {
	testenv.NoLeaks(t)
	server := startRedis(t)
	const n = 3000
	var text strings.Builder
	for i := range n {
		fmt.Fprintf(&text, `{"key":"app:m:t:%d","payload":{"n":%d},"px":3600000}`+"\n", i, i)
	}
	if code, out, errs := timerd(t, text.String(), "set", "--from", "-"); code != exitOK ||
		out != fmt.Sprintf("%d set, 0 there already, 0 bad\n", n) {
		t.Errorf("exit code %d\n%s%s", code, out, errs)
	}
	if got := server.Client().ZCard(t.Context(), keys.Single.Due()).Val(); got != n {
		t.Errorf("%d timers are pending, want %d", got, n)
	}
}

// Lines that come one by one are set as they come, and a line that cannot be set ends it.
func TestSetFromAStream(t *testing.T) {
	testenv.NoLeaks(t)
	server := startRedis(t)
	rdb := server.Client()
	in, lines := io.Pipe()
	var out, errs testenv.Output
	ended := make(chan int, 1)
	go func() { ended <- run(t.Context(), []string{"set", "--from", "-"}, in, &out, &errs) }()
	line := func(id int) {
		t.Helper()
		if _, err := fmt.Fprintf(lines, `{"key":"app:m:t:%d","px":3600000}`+"\n", id); err != nil {
			t.Error(err)
		}
	}
	line(1)
	testenv.Eventually(t, patience, func() bool { return rdb.Exists(t.Context(), "app:m:t:1").Val() == 1 },
		"the first timer to be set")
	server.Stop()
	line(2)
	if code := <-ended; code != exitFailed || !strings.Contains(errs.String(), "timerd: line 2: ") ||
		!strings.Contains(errs.String(), "may not be set: set them again") {
		t.Errorf("without Redis: exit code %d\n%s%s", code, &out, &errs)
	}
	if out.String() != "1 set, 0 there already, 0 bad\n" {
		t.Errorf("it says %s", &out)
	}
	_ = lines.Close() // ends who reads
}

func TestSetFromInterrupted(t *testing.T) {
	testenv.NoLeaks(t)
	rdb := startRedis(t).Client()
	in, lines := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out, errs testenv.Output
	ended := make(chan int, 1)
	go func() { ended <- run(ctx, []string{"set", "--from", "-"}, in, &out, &errs) }()
	if _, err := io.WriteString(lines,
		`{"key":"app:m:t:1","px":3600000}`+"\n"+`{"key":"app:m:t:2","px":36`); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, patience, func() bool { return rdb.Exists(t.Context(), "app:m:t:1").Val() == 1 },
		"the first timer to be set")
	cancel()
	if code := <-ended; code != exitFailed || !strings.Contains(errs.String(), "line 2 and the rest: interrupted") ||
		out.String() != "1 set, 0 there already, 0 bad\n" {
		t.Errorf("exit code %d\n%s%s", code, &out, &errs)
	}
	_ = lines.Close() // ends who reads
}
