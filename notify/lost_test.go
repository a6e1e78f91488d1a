package notify_test

import (
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/notify"
)

// rollBack makes a NATS server lose the messages stored in do, as a power cut may.
func rollBack(t *testing.T, server *testenv.NATSServer, do func()) {
	t.Helper()
	saved := t.TempDir()
	server.Stop()
	if err := os.CopyFS(saved, os.DirFS(server.StoreDir())); err != nil {
		t.Fatal(err)
	}
	server.Start()
	do()
	server.Stop()
	if err := os.RemoveAll(server.StoreDir()); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(server.StoreDir(), os.DirFS(saved)); err != nil {
		t.Fatal(err)
	}
	server.Start()
}

func TestLostEventsAreNoticed(t *testing.T) {
	t.Parallel()
	server := testenv.NATS(t)
	logged := make(lines, 1000)
	r := start(t, server, server.URL(), nil, func(p *notify.Publisher) {
		p.Logger = slog.New(slog.NewTextHandler(logged, nil))
	})
	n, settled := 0, 0
	fire := func(count int) {
		t.Helper()
		r.publish(t, firings(n, count, "x")...)
		n, settled = n+count, settled+count
		r.settler.expect(t, settled, 0)
	}
	// told waits for one line about the loss, and for the total of lost events.
	told := func(text string, total uint64) {
		t.Helper()
		testenv.Eventually(t, patience, func() bool { return r.metrics.counts().lost == total },
			"the count of lost events")
		for line := range logged {
			if strings.Contains(line, "NATS has lost events") {
				if !strings.Contains(line, "level=ERROR") || !strings.Contains(line, text) {
					t.Errorf("logged %s, want %q", line, text)
				}
				return
			}
		}
	}
	fire(10)
	r.healthy(t, patience, "")
	rollBack(t, server, func() {
		r.healthy(t, patience, "")
		fire(7)
	})
	told("count=7 err=\"stream TIMERS goes on at sequence 11, though 17 was acknowledged\"", 7)

	rollBack(t, server, func() {
		r.healthy(t, patience, "")
		fire(5)
	})
	fire(20) // before the stream is looked at
	told("though 15 was acknowledged", 12)
	r.stop(t)
	for len(logged) > 0 {
		if line := <-logged; strings.Contains(line, "has lost events") {
			t.Errorf("logged again: %s", line)
		}
	}
}
