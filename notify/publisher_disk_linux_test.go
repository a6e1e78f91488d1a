package notify_test

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/notify"
)

// On a full disk NATS answers everything but events, and keeps doing so once there is space. The publisher holds events
// back and has the server's reason, until a restart; one log line reports the firings given back.
func TestFullDiskHoldsFiringsBack(t *testing.T) {
	t.Parallel()
	nats := testenv.NATS(t)
	var log testenv.Output
	r := start(t, nats, nats.URL(), nil, func(p *notify.Publisher) {
		p.AckWait, p.Logger = 300*time.Millisecond, slog.New(slog.NewTextHandler(&log, nil))
	})
	r.publish(t, firings(0, 1, "x")...)
	r.settler.expect(t, 1, 0)
	nats.FillDisk("TIMERS")
	for round := range 3 {
		short := firings(1+10*round, 10, "x")
		for i := range short {
			short[i].Lease = time.Second
		}
		r.publish(t, short...)
		r.settler.expect(t, 1, 10*(round+1))
	}
	r.healthy(t, patience, "stream TIMERS: the NATS server cannot write it")
	for _, want := range []string{"TIMERS/msgs/1.blk: no space left on device", "to fix it: make space",
		"then restart nats-server"} {
		r.healthy(t, patience, want)
	}
	r.blocked(t)
	all := firings(31, 20, "x")
	r.publish(t, all...)
	nats.Restart()
	r.healthy(t, patience, "")
	r.settler.expect(t, 21, 30)
	if n := strings.Count(log.String(), "giving them back"); n != 1 {
		t.Errorf("the log tells %d times:\n%s", n, log.String())
	}
}
