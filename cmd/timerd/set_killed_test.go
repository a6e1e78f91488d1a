package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
)

// A killed timerd set --from is gone on with behind the lines that are noted, and sets every timer once.
func TestSetFromGoesOnAfterAKill(t *testing.T) {
	testenv.NoLeaks(t)
	server := startRedis(t)
	rdb := server.Client()
	file := filepath.Join(t.TempDir(), "timers.jsonl")
	// One timer in ten is long overdue.
	const overdue = 10
	write := func(count int) {
		var text strings.Builder
		for i := range count {
			due := int64(4102444800000)
			if i%overdue == 0 {
				due = 1000
			}
			fmt.Fprintf(&text, `{"key":"app:m:t:%d","payload":"p","due":%d}`+"\n", i, due)
		}
		if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	timers := func() (n int64) {
		t.Helper()
		for _, key := range []string{keys.Single.Due(), keys.Single.Firing()} {
			n += rdb.ZCard(t.Context(), key).Val()
		}
		return n
	}
	pause := func() {
		t.Helper()
		if err := rdb.Do(t.Context(), "CLIENT", "PAUSE", 600_000, "WRITE").Err(); err != nil {
			t.Fatal(err)
		}
	}
	resume := func() { rdb.Do(t.Context(), "CLIENT", "UNPAUSE") }

	// setHalf kills the command once it has written a note, if it has not come to the end of the file by then.
	setHalf := func(count int) (note fileNote, half bool) {
		t.Helper()
		write(count)
		cmd := exec.Command(os.Args[0], "set", "--from", file)
		cmd.Env = []string{mainVariable + "=1", "TIMERD_REDIS_URL=" + server.URL(0)}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		for {
			before := timers()
			resume()
			testenv.Eventually(t, patience, func() bool { return timers() > before || before == int64(count) },
				"timers that are set")
			pause()
			text, err := os.ReadFile(file + noteEnding)
			if err == nil && json.Unmarshal(text, &note) == nil || before == int64(count) {
				break
			}
		}
		_ = cmd.Process.Kill() // perhaps it has ended
		_ = cmd.Wait()
		resume()
		return note, note.Line > 0 && timers() < int64(count)
	}
	count := 20_000
	note, half := setHalf(count)
	for ; !half; note, half = setHalf(count) {
		if err := rdb.FlushDB(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		attend(t, server)
		_ = os.Remove(file + noteEnding) // it may be gone
		count *= 2
	}

	there := timers()
	code, out, errs := timerd(t, "", "set", "--from", file)
	want := fmt.Sprintf("%d set, %d there already, 0 bad\n", count-(int(there)-note.Set), int(there)-note.Set)
	if code != exitOK || out != want || !strings.Contains(errs,
		fmt.Sprintf("going on behind line %d, as ", note.Line)) {
		t.Errorf("exit code %d\n%s%swant %s", code, out, errs, want)
	}
	due, owed := rdb.ZCard(t.Context(), keys.Single.Due()).Val(), rdb.ZCard(t.Context(), keys.Single.Firing()).Val()
	if int(due) != count-count/overdue || int(owed) != count/overdue {
		t.Errorf("%d pending and %d owed, want %d and %d", due, owed, count-count/overdue, count/overdue)
	}
}

// BenchmarkSetFrom measures the rate of setting exported timers with payloads of 200 bytes. For 100,000 of them:
//
//	go test ./cmd/timerd -run '^$' -bench SetFrom -benchtime 100000x
func BenchmarkSetFrom(b *testing.B) {
	server := testenv.Redis(b)
	b.Setenv("TIMERD_REDIS_URL", server.URL(0))
	file := filepath.Join(b.TempDir(), "timers.jsonl")
	var text bytes.Buffer
	for i := range b.N {
		fmt.Fprintf(&text, `{"key":"app:m:t:%d","state":"pending","payload":%q,"due":4102444800000}`+"\n", i,
			strings.Repeat("p", 200))
	}
	if err := os.WriteFile(file, text.Bytes(), 0o600); err != nil {
		b.Fatal(err)
	}
	b.ResetTimer()
	var errs bytes.Buffer
	if code := run(b.Context(), []string{"set", "--from", file}, nil, &text, &errs); code != exitOK {
		b.Fatal(errs.String())
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "timers/s")
}
