package history_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/history"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
)

// all follows the pages of a query to the beginning, and checks that they are in order.
func all(t *testing.T, r *history.Reader, q history.Query, limit int) (records []history.Record) {
	t.Helper()
	place := ""
	for page := range 1000 {
		p, err := r.Search(t.Context(), q, place, limit)
		if err != nil {
			t.Fatalf("page %d: %v", page, err)
		}
		for _, record := range p.Records {
			if n := len(records); n > 0 && record.Stored.After(records[n-1].Stored) {
				t.Fatalf("page %d: %s/%d of %v comes after %s/%d of %v", page, record.Stream, record.Seq, record.Stored,
					records[n-1].Stream, records[n-1].Seq, records[n-1].Stored)
			}
			records = append(records, record)
		}
		if n := len(records); n > 0 && p.Place != "" && records[n-1].Stored.Before(p.Since) {
			t.Fatalf("page %d has a record of %v, and says that it has looked since %v", page, records[n-1].Stored,
				p.Since)
		}
		if place = p.Place; place == "" {
			return records
		}
	}
	t.Fatalf("after 1000 pages at %s", place)
	return nil
}

// summary describes records, in a few words each.
func summary(records []history.Record) string {
	texts := make([]string, len(records))
	for i, r := range records {
		if texts[i] = fmt.Sprintf("%s %s/%d", r.Kind, r.Event.Key.ID, r.Event.Attempt); r.Fault != "" {
			texts[i] = r.Kind + " fault"
		}
	}
	return strings.Join(texts, ", ")
}

// What happened to a timer is found wherever it is in a stream of many windows, by its key and by a part of its id,
// with its dead letter among its firings, whether the stream allows direct access or not.
func TestSearch(t *testing.T) {
	t.Parallel()
	const window = 170
	testSearch(t, 4000, func(r *history.Reader) { r.WithFirstWindow(window) })
}

// The same in a stream of many windows as they are.
func TestSearchAtScale(t *testing.T) {
	t.Parallel()
	testSearch(t, 100_000, func(*history.Reader) {})
}

// testSearch has so many firings stored, and searches them.
func testSearch(t *testing.T, total int, configure func(*history.Reader)) {
	const key = "pay:refund:poll:ord-42:a"
	names := keys.Names{}
	s := newStreams(t, testenv.NATS(t), names)
	wanted := 0
	for i := range total {
		switch {
		case i%(total/4) == total/10:
			wanted++
			s.fire(key, wanted)
		case i == total*3/4+1:
			s.await(names.FiredStream(), uint64(i))
			s.die(key, "given up by the consumer")
			s.await(names.DeadStream(), 1)
			s.fire("pay:refund:poll:ord-421", 1)
		case i%500 == 0:
			s.fire(fmt.Sprintf("pay:refund:poll:other-%d", i), 1)
		default:
			s.fire(fmt.Sprintf("shop:order:timeout:%d", i), 1)
		}
	}
	s.await(names.FiredStream(), uint64(total))
	r := history.New(s.js, names)
	configure(r)
	const byKey = "fired ord-42:a/4, dead ord-42:a/16, fired ord-42:a/3, fired ord-42:a/2, fired ord-42:a/1"
	const byText = "fired ord-42:a/4, fired ord-421/1, dead ord-42:a/16, fired ord-42:a/3, fired ord-42:a/2, fired " +
		"ord-42:a/1"
	for _, direct := range []bool{true, false} {
		s.allowDirect(direct)
		for _, c := range []struct {
			name  string
			work  time.Duration // 1: each page is one window
			query history.Query
			want  string
		}{
			{"key", time.Second, history.Query{Key: parseKey(t, key)}, byKey},
			{"key, window by window", 1, history.Query{Key: parseKey(t, key)}, byKey},
			{"type", time.Second, history.Query{Namespace: keys.Namespace{App: "pay", Module: "refund", Type: "poll"},
				Text: "ord-42"}, byText},
			{"app", time.Second, history.Query{Namespace: keys.Namespace{App: "pay"}, Text: "ord-42"}, byText},
			{"any app", time.Second, history.Query{Namespace: keys.Namespace{Type: "poll"}, Text: "ord-42"}, byText},
			{"any, window by window", 1, history.Query{Text: "d-42"}, byText},
			{"no such namespace", time.Second, history.Query{
				Namespace: keys.Namespace{App: "shop", Module: "order", Type: "x"}}, ""},
			{"dead letters", time.Second, history.Query{Text: "ord-42", Kind: keys.Dead}, "dead ord-42:a/16"},
			{"reasons", time.Second, history.Query{Why: "bad GATEWAY", Kind: keys.Dead}, "dead ord-42:a/16"},
		} {
			if !direct && c.work != 1 && c.name != "type" {
				continue // read in the same way
			}
			r.Work = c.work
			if got := summary(all(t, r, c.query, 2)); got != c.want {
				t.Errorf("direct %v, %s: %s, want %s", direct, c.name, got, c.want)
			}
		}
	}
}

// Ids are read from headers, of long keys from the message. Messages without a timer of their subject have none.
func TestIdentities(t *testing.T) {
	t.Parallel()
	names := keys.Names{}
	s := newStreams(t, testenv.NATS(t), names)
	long := "app:m:t:" + strings.Repeat("x", 600)
	forged := firing("app:m:t:victim", 1)
	s.fire("app:m:t:before", 1)
	s.await(names.FiredStream(), 1)
	r := history.New(s.js, names)
	var began time.Time
	testenv.Eventually(t, time.Minute, func() bool {
		began = time.Now()
		p, err := r.Search(t.Context(), history.Query{}, "", 1)
		return err == nil && p.Records[0].Stored.Before(began)
	}, "the clock of NATS to pass")
	s.fire("app:m:t:a b", 2)
	s.publish("timers.fired.evil.m.t", nats.Header{event.MsgIDHeader: {forged.ID}}, forged.AppendJSON(nil))
	s.publish("timers.fired.app.m.t", nil, []byte("no event"))
	s.fire(long, 1)
	s.fire("app:m:t:last", 1)
	s.await(names.FiredStream(), 6)
	read := func(since time.Time, most int) (said []string) {
		for from, more := uint64(0), true; more; more = from > 0 {
			ids, next, err := r.Identities(t.Context(), keys.Fired, since, from, most)
			if err != nil || len(ids) > most {
				t.Fatalf("%d ids, %v", len(ids), err)
			}
			for _, id := range ids {
				said = append(said, fmt.Sprintf("%d %.12s %d", id.Seq, id.Key, id.Attempt))
			}
			from = next
		}
		return said
	}
	want := []string{"2 app:m:t:a b 2", "5 app:m:t:xxxx 1", "6 app:m:t:last 1"}
	for most := range 6 {
		if got := read(began, most+1); !slices.Equal(got, want) {
			t.Errorf("%d at a time: %q, want %q", most+1, got, want)
		}
	}
	if got := read(began.Add(-time.Hour), 2); !slices.Equal(got, append([]string{"1 app:m:t:befo 1"}, want...)) {
		t.Errorf("from the beginning: %q", got)
	}
	_, _, err := r.Identities(t.Context(), keys.Delivery, began, 0, 1)
	if !errors.Is(err, history.ErrNoStream) {
		t.Errorf("without the stream: %v", err)
	}
}

// Each page has its extent, and the next one goes on there, even if messages were stored or deleted meanwhile.
func TestPages(t *testing.T) {
	t.Parallel()
	names := keys.Names{}
	s := newStreams(t, testenv.NATS(t), names)
	for i := range 30 {
		s.fire(fmt.Sprintf("app:m:t:%d", i), 1)
	}
	s.await(names.FiredStream(), 30)
	r := history.New(s.js, names)
	p, err := r.Search(t.Context(), history.Query{}, "", 10)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(p.Records); n != 10 || p.Records[0].Seq != 30 || p.Streams[0].Seq != 21 ||
		p.Streams[0].Messages != 30 || p.Looked == 0 {
		t.Fatalf("%d records, looked at %d: %+v", n, p.Looked, p.Streams)
	}
	if late, ok := p.Records[0].Late(); !ok || late != 2*time.Millisecond {
		t.Errorf("late by %v, %v", late, ok)
	}
	stream, err := s.js.Stream(t.Context(), names.FiredStream())
	if err != nil {
		t.Fatal(err)
	}
	for seq := uint64(5); seq <= 25; seq++ {
		if err := stream.DeleteMsg(t.Context(), seq); err != nil {
			t.Fatal(err)
		}
	}
	s.fire("app:m:t:new", 1)
	s.await(names.FiredStream(), 10)
	p, err = r.Search(t.Context(), history.Query{}, p.Place, 10)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := summary(p.Records), "fired 3/1, fired 2/1, fired 1/1, fired 0/1"; got != want || p.Place != "" ||
		!p.Since.IsZero() {
		t.Errorf("%s, place %q, since %v; want %s and the beginning", got, p.Place, p.Since, want)
	}
	if err := stream.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	if p, err := r.Search(t.Context(), history.Query{}, "21.1", 10); err != nil || len(p.Records) > 0 || p.Place != "" {
		t.Errorf("after a purge: %+v, %v", p, err)
	}
	for _, place := range []string{".", "x", "1.2.3.4", "-1", "99999999999999999999", "1.\x00",
		strings.Repeat("1", 4000)} {
		if _, err := r.Search(t.Context(), history.Query{}, place, 10); !errors.Is(err, history.ErrPlace) ||
			len(err.Error()) > 500 {
			t.Errorf("place %.20q: %v", place, err)
		}
	}
	if p, err := r.Search(t.Context(), history.Query{}, "18446744073709551615.0", 10); err != nil ||
		len(p.Records) != 0 && p.Records[0].Seq > 31 {
		t.Errorf("a place beyond the end: %+v, %v", p, err)
	}
}

// Any message in a stream is shown in its true kind, and the events beside it are found.
func TestSearchAmongHostileMessages(t *testing.T) {
	t.Parallel()
	names := keys.Names{}
	nats1 := testenv.NATS(t, func(o *server.Options) { o.MaxPayload = 5 << 20 })
	s := newStreams(t, nats1, names)
	subject := "timers.fired.app.m.t"
	long := "app:m:t:" + strings.Repeat("é\x00\xff\"\\<b>", 120)[:1000]
	hostile := []struct {
		header nats.Header
		data   string
	}{
		{nil, ""},
		{nats.Header{"Status": {"404"}, "Description": {"No Messages"}}, ""},
		{nats.Header{"Status": {"409"}, "Description": {"Consumer Deleted"}}, ""},
		{nats.Header{"Status": {"409"}, "Description": {"Message Size Exceeds MaxBytes"}}, ""},
		{nats.Header{"Status": {"100"}}, ""},
		{nats.Header{"Nats-Sequence": {"18446744073709551615"}, "Nats-Subject": {"timers.fired.x.y.z"},
			"Nats-Time-Stamp": {"x"}}, "order 42"},
		{nil, "\xff\xfe order 42 {"},
		{nil, `{"specversion":"1.0","subject":"app:m:t:order 42"`},
		{nil, strings.Repeat("[", 100_000) + "order 42"},
	}
	s.fire("app:m:t:order 42", 1)
	s.fire(long, 1)
	const rounds = 2
	for range rounds {
		for _, h := range hostile {
			s.publish(subject, h.header, []byte(h.data))
		}
	}
	for _, size := range []int{4 << 20, 5 << 19} { // more than a page keeps, and more than is on its way at a time
		s.publish(subject, nil, []byte(strings.Repeat("x", size)+"order 42"))
	}
	forged := firing("app:m:other:order 42", 1)
	s.publish(subject, nil, forged.AppendJSON(nil))
	s.publish("timers.fired.a", nil, forged.AppendJSON(nil))
	s.fire("app:m:t:order 42", 2)
	s.await(names.FiredStream(), 7+rounds*uint64(len(hostile)))

	r := history.New(s.js, names)
	for _, q := range []history.Query{
		{Key: parseKey(t, "app:m:t:order 42")},
		{Namespace: keys.Namespace{App: "app"}, Text: "order 42"},
		{Text: "order 42"},
	} {
		var attempts []int
		for _, record := range all(t, r, q, 20) {
			if record.Fault == "" {
				attempts = append(attempts, record.Event.Attempt)
			} else if !strings.Contains(string(record.Data), "order 42") {
				t.Errorf("%+v: message %d has nothing to do with it", q, record.Seq)
			}
		}
		if !slices.Equal(attempts, []int{2, 1}) {
			t.Errorf("%+v: attempts %v, want 2 and 1", q, attempts)
		}
	}
	found := all(t, r, history.Query{Key: parseKey(t, long)}, 0)
	if n := len(found); n == 0 || found[n-1].Event.Key.String() != long {
		t.Errorf("a long key: %s", summary(found))
	}
	tail := history.NewTail(r)
	testenv.Eventually(t, time.Minute, func() error {
		if sample := tail.Sample(t.Context()); sample.Away != "" || len(sample.Records) < 2 ||
			sample.Records[0].Event.Attempt != 2 {
			return fmt.Errorf("%d records, away %q: %s", len(sample.Records), sample.Away, summary(sample.Records))
		}
		return nil
	}, "the tail")
}

// Where a right is missing, the error names it. Where NATS is away or a stream is missing, it says so.
func TestSearchNamesMissingParts(t *testing.T) {
	t.Parallel()
	names := keys.Names{}
	nats1 := testenv.NATS(t)
	js := nats1.JetStream()
	r := history.New(js, names)
	if _, err := r.Search(t.Context(), history.Query{}, "", 0); !errors.Is(err, history.ErrNoStream) ||
		!strings.Contains(err.Error(), "TIMERS") {
		t.Errorf("without streams: %v", err)
	}
	s := newStreams(t, nats1, names)
	s.fire("app:m:t:1", 1)
	s.await(names.FiredStream(), 1)
	tail := history.NewTail(r)
	if sample := tail.Sample(t.Context()); len(sample.Records) != 1 || sample.Away != "" {
		t.Errorf("%d records, away %q", len(sample.Records), sample.Away)
	}
	nats1.Stop()
	testenv.Eventually(t, time.Minute, func() error {
		if sample := tail.Sample(t.Context()); sample.Away == "" || len(sample.Records) != 1 {
			return fmt.Errorf("away %q, %d records", sample.Away, len(sample.Records))
		}
		return nil
	}, "the tail says that NATS is away, and keeps its events")
	if _, err := r.Search(t.Context(), history.Query{}, "", 0); err == nil || !strings.Contains(err.Error(), "NATS") {
		t.Errorf("without NATS: %v", err)
	}
	nats1.Start()
	testenv.Eventually(t, time.Minute, func() error {
		if sample := tail.Sample(t.Context()); sample.Away != "" {
			return errors.New(sample.Away)
		}
		return nil
	}, "the tail goes on")
}

// A user without the rights to read gets the name of the missing one.
func TestSearchWithoutRights(t *testing.T) {
	t.Parallel()
	nats1 := testenv.NATS(t, func(o *server.Options) {
		o.Users = []*server.User{
			{Username: "timerd", Password: "pw"},
			{Username: "less", Password: "pw", Permissions: &server.Permissions{
				Publish: &server.SubjectPermission{Allow: []string{"$JS.API.STREAM.INFO.>", "$JS.API.CONSUMER.CREATE.>",
					"$JS.API.CONSUMER.DELETE.>"}},
			}},
		}
	})
	names := keys.Names{}
	s := newStreams(t, nats1, names, nats.UserInfo("timerd", "pw"))
	s.fire("app:m:t:1", 1)
	s.await(names.FiredStream(), 1)
	r := history.New(nats1.JetStream(nats.UserInfo("less", "pw")), names)
	_, err := r.Search(t.Context(), history.Query{}, "", 0)
	if err == nil || !strings.Contains(err.Error(), "may not publish to $JS.API.CONSUMER.MSG.NEXT.TIMERS.") {
		t.Errorf("without the right to read: %v", err)
	}
}

// The tail of a busy stream is a sample of the messages since the last one, and the same for all viewers.
func TestTail(t *testing.T) {
	t.Parallel()
	names := keys.Names{}
	s := newStreams(t, testenv.NATS(t), names)
	tail := history.NewTail(history.New(s.js, names))
	if sample := tail.Sample(t.Context()); len(sample.Records) != 0 || sample.Away != "" {
		t.Fatalf("of an empty stream: %+v", sample)
	}
	const total = 1000
	for i := range total {
		s.fire(fmt.Sprintf("app:m:t:%d", i), 1)
	}
	s.await(names.FiredStream(), total)
	var sample history.Sample
	testenv.Eventually(t, time.Minute, func() error {
		if sample = tail.Sample(t.Context()); sample.Seq != total {
			return fmt.Errorf("at %d", sample.Seq)
		}
		if n := len(sample.Records); n < 20 { // NATS was too slow for more
			tail = history.NewTail(history.New(s.js, names))
			return fmt.Errorf("%d records", n)
		}
		return nil
	}, "a new sample")
	if n := len(sample.Records); n != 20 || sample.Records[0].Seq != total || sample.Records[0].Event.ID == "" ||
		sample.Records[0].Event.Data != nil {
		t.Fatalf("%d records: %+v", n, sample.Records[0])
	}
	if again := tail.Sample(t.Context()); again.At != sample.At {
		t.Error("read again at once")
	}
}

func parseKey(t *testing.T, s string) keys.Key {
	t.Helper()
	k, err := keys.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return k
}
