package retry_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/policy"
	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// Each malformed request becomes a dead letter with its reason and bytes, and delays no good one.
func TestConsumerBuriesMalformedRequests(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.start("1h", nil)
	good := firedEvent("1", 1, []byte(`{"order":42}`))
	text := string(good.AppendJSON(nil))
	dead := good
	dead.Type, dead.DeadReason = event.TypeDead, "no use"
	elsewhere := strings.Replace(retrySubject, "notice", "other", 1)
	long := firedEvent(strings.Repeat("x", keys.MaxKeyBytes), 1, nil)
	for i, c := range []struct {
		name, subject string
		data          []byte
		reason        string // a text it must contain
		key           string // of the letter, without the place in the stream
		on            string // the letter's subject
	}{
		{"empty", retrySubject, nil, "not a JSON object", "app1:trans:notice:", deadSubject},
		{"text", retrySubject, []byte("try again"), "not a JSON object", "app1:trans:notice:", deadSubject},
		{"bytes", retrySubject, []byte("\x00\xff{}"), "not valid UTF-8", "app1:trans:notice:", deadSubject},
		{"cut short", retrySubject, []byte(text[:len(text)-1]), "cut short", "app1:trans:notice:", deadSubject},
		{"no event", retrySubject, []byte(`{"a": 1 }`), "missing", "app1:trans:notice:", deadSubject},
		{"dead letter", retrySubject, dead.AppendJSON(nil), "want \"timerd.timer.fired\"", "app1:trans:notice:",
			deadSubject},
		{"other subject", elsewhere, []byte(text), "retries of that timer belong on " + retrySubject,
			"app1:trans:other:",
			"timers.dead.app1.trans.other"},
		{"long key", retrySubject, long.AppendJSON(nil), "too long", "app1:trans:notice:", deadSubject},
		{"attempt 0", retrySubject, []byte(strings.Replace(text, `"attempt":1`, `"attempt":0`, 1)), "attempt",
			"app1:trans:notice:", deadSubject},
		{"attempt beyond int32", retrySubject, []byte(strings.Replace(text, `"attempt":1`, `"attempt":4294967297`, 1)),
			"attempt", "app1:trans:notice:", deadSubject},
		{"two tokens", "timers.retry.app1.trans", []byte("x"), "not a JSON object", "app1:trans:-:",
			"timers.dead.app1.trans.-"},
		{"four tokens", "timers.retry.a.b.c.d", []byte("x"), "not a JSON object", "a:b:c.d:", "timers.dead.a.b.c%2Ed"},
		{"bad encoding", "timers.retry.a%.b.c", []byte(text), "retries of that timer belong on", "a%25:b:c:",
			"timers.dead.a%25.b.c"},
		{"a colon", "timers.retry.a.b%3Ac.d", []byte(text), "retries of that timer belong on", "a:b%253Ac:d:",
			"timers.dead.a.b%253Ac.d"},
		{"a long token", "timers.retry." + strings.Repeat("a", 200) + ".b.c", []byte(text),
			"retries of that timer belong on",
			strings.Repeat("a", 128) + ":b:c:", "timers.dead." + strings.Repeat("a", 128) + ".b.c"},
	} {
		f.request(c.subject, c.data, "Timer-Error", "boom")
		letter := f.letters(i + 1)[i]
		if !strings.HasPrefix(letter.DeadReason, event.ReasonMalformed) ||
			!strings.Contains(letter.DeadReason, c.reason) {
			t.Errorf("%s: reason %q, want %q", c.name, letter.DeadReason, c.reason)
		}
		if got, want := keys.EncodeText(letter.Key.String()), c.key+fmt.Sprintf("TIMERS_RETRY/%d", i+1); got != want {
			t.Errorf("%s: key %q, want %q", c.name, got, want)
		}
		if on := letter.Key.Subject("timers", keys.Dead); on != c.on {
			t.Errorf("%s: on %s, want %s", c.name, on, c.on)
		}
		if letter.Data == nil || !bytes.Equal(letter.Data, c.data) || letter.LastError != "boom" {
			t.Errorf("%s: data %q and error %q", c.name, letter.Data, letter.LastError)
		}
		f.waitEmpty()
	}
	if pending, firing := f.schedule.Count(); pending+firing != 0 {
		t.Errorf("%d pending and %d firing, want none", pending, firing)
	}
	if lines := f.logged("malformed retry request"); lines != 15 {
		t.Errorf("%d lines in the log, want 15", lines)
	}
	if retried, _, malformed, exhausted := f.hooks.counts(); retried+exhausted != 0 || malformed != 15 {
		t.Errorf("hooks counted %d, %d, %d", retried, malformed, exhausted)
	}
}

func TestConsumerBuriesEachMalformedRequestOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	proxy := testenv.NewProxy(t, f.nats.Addr())
	f.request(retrySubject, []byte("x"))
	f.request(retrySubject, []byte("x"))
	// The letters are stored, but the acknowledgements of the requests are lost.
	for range 3 {
		proxy.Delay(300 * time.Millisecond)
		c := f.startAt("nats://"+proxy.Addr(), f.schedule, "1h", mortal)
		f.letters(2)
		c.kill()
		proxy.Heal()
	}
	f.start("1h", mortal)
	f.waitEmpty()
	f.letters(2)
}

func TestConsumerDelayHeader(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.start("10s", nil)
	for header, want := range map[string]time.Duration{
		"90s": 90 * time.Second, "1h30m": 90 * time.Minute, "20.0005s": 20*time.Second + time.Millisecond,
		"87600h": policy.Longest, "": 10 * time.Second,
	} {
		e := firedEvent("good"+fmt.Sprint(want.Milliseconds()), 1, nil)
		headers := []string{"timer-delay", header}
		if header == "" {
			headers = nil
		}
		before := time.Now()
		f.request(retrySubject, e.AppendJSON(nil), headers...)
		after := time.Now()
		f.waitEmpty()
		p := f.pending()[e.Key.String()]
		if stored := p.Due.Add(-want); stored.Before(before.Add(-2*time.Millisecond)) ||
			stored.After(after.Add(2*time.Millisecond)) {
			t.Errorf("%q: due after %s, want %s", header, p.Due.Sub(before), want)
		}
	}
	for _, header := range []string{"0", "0s", "1ns"} {
		e := firedEvent("now", 1, nil)
		f.request(retrySubject, e.AppendJSON(nil), "Timer-Delay", header)
		if firings := f.schedule.Claim(1, lease); firings[0].Key != e.Key {
			t.Errorf("%q: fired %s", header, firings[0].Key)
		} else if err := f.schedule.Settle(t.Context(), schedule.Outcomes(schedule.OutcomeFired,
			firings...)); err != nil {
			t.Fatal(err)
		}
		f.waitEmpty()
	}
	pending, _ := f.schedule.Count()
	e := firedEvent("bad", 1, []byte("payload"))
	bad := []string{"soon", "90", "-1s", "87601h", "99999999h", "1 h", "", "\x00"}
	for _, header := range bad {
		f.request(retrySubject, e.AppendJSON(nil), "Timer-Delay", header, "Timer-Error", "boom")
		f.waitEmpty()
	}
	f.request(retrySubject, e.AppendJSON(nil), "Timer-Delay", "1s", "Timer-Delay", "2s")
	for _, letter := range f.letters(len(bad) + 1) {
		if !strings.HasPrefix(letter.DeadReason, event.ReasonRefused+"Timer-Delay") || letter.Key != e.Key ||
			letter.Attempt != 1 ||
			string(letter.Data) != "payload" || letter.LastError != "boom" && letter.LastError != "" {
			t.Errorf("dead letter %+v", letter)
		}
	}
	if now, firing := f.schedule.Count(); now != pending || firing != 0 {
		t.Errorf("%d pending and %d firing, want %d and none", now, firing, pending)
	}
}

func TestConsumerKeepsPayloadsByteForByte(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.start("1h", nil)
	for i, payload := range [][]byte{
		[]byte("plain"), []byte(`{"a": 1 }`), []byte(" \t{ \"a\":\r\n[1 , 2]}\n"), []byte(`"quoted"`), []byte("null"),
		[]byte("1e3"), []byte("  "),
		{}, {0}, []byte("\x00tmd"), []byte("\xff\xfe\x00binary"), []byte("{\"a\":\"\xff\"}"),
		bytes.Repeat([]byte("ü\""), 50_000),
	} {
		e := firedEvent(fmt.Sprint(i), 1, payload)
		f.request(retrySubject, e.AppendJSON(nil))
		f.waitEmpty()
		if p := f.pending()[e.Key.String()]; p.Status != schedule.PayloadPresent || p.Payload == nil ||
			!bytes.Equal(p.Payload, payload) {
			t.Errorf("payload %.40q became %.40q, status %d", payload, p.Payload, p.Status)
		}
	}
	for status, want := range map[string]schedule.Status{
		event.StatusMissing: schedule.PayloadMissing, event.StatusTooLarge: schedule.PayloadTooLarge,
		"": schedule.PayloadMissing, "odd": schedule.PayloadMissing,
	} {
		e := firedEvent("none"+status, 1, nil)
		e.Status = status
		f.request(retrySubject, e.AppendJSON(nil))
		f.waitEmpty()
		if p := f.pending()[e.Key.String()]; p.Status != want || p.Payload != nil || p.Attempt != 2 {
			t.Errorf("datastatus %q became %+v", status, p)
		}
	}
}

func TestConsumerTellsForeignIDsApart(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.start("1h", nil)
	for _, id := range []string{"x", "two words\r\n", strings.Repeat("x", 10_000)} {
		for _, timer := range []string{"1", "2"} {
			e := firedEvent(timer+id[:1], 1, nil)
			e.ID = id
			f.request(retrySubject, e.AppendJSON(nil))
			f.request(retrySubject, e.AppendJSON(nil))
			f.waitEmpty()
		}
	}
	if retried, ignored, _, _ := f.hooks.counts(); retried != 6 || ignored != 6 {
		t.Errorf("%d set and %d ignored, want 6 and 6", retried, ignored)
	}
}

func TestConsumerCutsLettersThatHardlyFit(t *testing.T) {
	t.Parallel()
	const maxPayload = 64 << 10
	f := newFixture(t)
	f.nats.Stop()
	f.nats = testenv.NATS(t, func(o *server.Options) { o.MaxPayload = maxPayload })
	f.js = f.nats.JetStream()
	if err := streams.Ensure(t.Context(), f.js, streams.Config{}); err != nil {
		t.Fatal(err)
	}
	f.start("1h", nil)

	e := firedEvent("1", 2, nil) // used up
	room := maxPayload - 64 - len(e.AppendJSON(nil))
	e.Data = bytes.Repeat([]byte("7"), room-len(`"datacontenttype":"application/json",,"data":`))
	f.request(retrySubject, e.AppendJSON(nil))
	if letter := f.letters(1)[0]; letter.Data != nil || letter.Status != event.StatusTooLarge ||
		letter.DeadReason != event.ReasonExhausted {
		t.Errorf("dead letter without data %q, status %q, reason %q", letter.Data, letter.Status, letter.DeadReason)
	}
	e = firedEvent("2", 2, []byte("x"))
	f.request(retrySubject, e.AppendJSON(nil), "Timer-Error", strings.Repeat(`"error" `, 7_900))
	if letter := f.letters(2)[1]; string(letter.Data) != "x" || len(letter.LastError) > 1280 ||
		!strings.HasPrefix(letter.LastError, `"error" "error"`) {
		t.Errorf("dead letter with data %q, and error of %d bytes", letter.Data, len(letter.LastError))
	}
	garbage := bytes.Repeat([]byte{0xff}, maxPayload-100)
	f.request(retrySubject, garbage)
	letter := f.letters(3)[2]
	if len(letter.Data) < len(garbage)/4 || !bytes.HasPrefix(garbage, letter.Data) ||
		!strings.Contains(letter.DeadReason, fmt.Sprintf("of %d bytes", len(garbage))) {
		t.Errorf("dead letter with %d bytes, reason %q", len(letter.Data), letter.DeadReason)
	}
	f.waitEmpty()
}
