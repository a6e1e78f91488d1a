package notify_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/notify"
	"github.com/timerd-io/timerd/schedule"
)

func TestPayloadAttemptOff(t *testing.T) {
	t.Parallel()
	server := testenv.NATS(t)
	r := start(t, server, server.URL(), nil, func(p *notify.Publisher) {
		p.MaxAttempts = func(keys.Key) int { return 13 }
		p.PayloadAttempt = false
	})
	collector := testenv.Collect(t, r.js, "TIMERS")
	own, retried := firing(parseKey(t, "a:b:c:own"), `{"attempt":3}`), firing(parseKey(t, "a:b:c:retried"),
		`{"attempt":3}`)
	retried.Attempt = 2
	all := []schedule.Firing{own, retried}
	r.publish(t, all...)
	events := checkStream(t, collector, all)
	if e := events["a:b:c:own"]; e.Attempt != 1 {
		t.Errorf("attempt %d of the payload alone, want 1", e.Attempt)
	}
	if e := events["a:b:c:retried"]; e.Attempt != 2 {
		t.Errorf("attempt %d of a retry, want timerd's own count", e.Attempt)
	}
}

// claimedAgain returns a firing as the next claim has it after the first timerd died before settling it.
func claimedAgain(f schedule.Firing) schedule.Firing {
	now := time.Now()
	f.ClaimedAt, f.Received, f.MayBeStored = now, now, true
	return f
}

// Settings decide whether a payload's attempt counts, and a firing's id contains the attempt. A change of settings
// between two tries of a firing makes no second event.
func TestOneFiringUnderOtherSettings(t *testing.T) {
	t.Parallel()
	server := testenv.NATS(t)
	policy := func(attempts int, counts bool) func(*notify.Publisher) {
		return func(p *notify.Publisher) {
			p.MaxAttempts = func(keys.Key) int { return attempts }
			p.PayloadAttempt = counts
		}
	}
	f := firing(parseKey(t, "a:b:c:d"), `{"attempt":20}`)
	first := start(t, server, server.URL(), nil, policy(30, true))
	collector := testenv.Collect(t, first.js, "TIMERS")
	first.publish(t, f)
	if e := checkStream(t, collector, []schedule.Firing{f})["a:b:c:d"]; e.Attempt != 20 {
		t.Fatalf("attempt %d, want 20", e.Attempt)
	}
	first.settler.expect(t, 1, 0)
	first.stop(t)

	for _, configure := range []func(*notify.Publisher){policy(13, true), policy(30, false)} {
		r := start(t, server, server.URL(), nil, configure)
		r.publish(t, claimedAgain(f))
		r.settler.expect(t, 1, 0)
		r.stop(t)
	}
	collector.Stays(1, 100*time.Millisecond)

	// And the other way round.
	g := firing(parseKey(t, "a:b:c:e"), `{"attempt":20}`)
	before := start(t, server, server.URL(), nil, policy(13, true))
	before.publish(t, g)
	before.settler.expect(t, 1, 0)
	before.stop(t)
	after := start(t, server, server.URL(), nil, policy(30, true))
	after.publish(t, claimedAgain(g))
	after.settler.expect(t, 1, 0)
	collector.Wait(2, patience)
	collector.Stays(2, 100*time.Millisecond)
}

func TestPayloadsTravelAsAskedFor(t *testing.T) {
	t.Parallel()
	server := testenv.NATS(t)
	for i, c := range []struct{ asked, payload, travelsAs string }{
		{"", "1.10", event.DataJSON},
		{event.DataText, "1.10", event.DataText},
		{event.DataText, "\xff", event.DataBinary},
		{event.DataBinary, "1.10", event.DataBinary},
	} {
		r := start(t, server, server.URL(), nil, func(p *notify.Publisher) { p.ContentType = c.asked })
		r.publish(t, firing(parseKey(t, fmt.Sprintf("a:b:c:%d", i)), c.payload))
		r.settler.expect(t, 1, 0)
		e, err := event.Parse(testenv.Collect(t, r.js, "TIMERS").Wait(i+1, patience)[i].Data)
		if err != nil || e.ContentType != c.travelsAs || string(e.Data) != c.payload {
			t.Errorf("%q, asked for as %q, came as %q of %q, %v", c.payload, c.asked, e.Data, e.ContentType, err)
		}
		r.stop(t)
	}
}
