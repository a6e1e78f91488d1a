package history_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/history"
	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
)

// log makes the stream of deliveries.
func (s *fixture) log() {
	s.t.Helper()
	if err := streams.EnsureDelivery(s.t.Context(), s.js, streams.Config{Names: s.names}); err != nil {
		s.t.Fatal(err)
	}
}

// delivery is a record of a timer.
func delivery(key string, attempt int, result event.Result, text string) []byte {
	now := time.Now().UTC().Truncate(time.Millisecond)
	data, err := json.Marshal(event.Delivery{
		ID: keys.EventID(key, now.UnixMilli(), attempt), Subject: keys.EncodeText(key), Attempt: attempt,
		Host: "merchant.example:443", Status: 502,
		Result: result, Time: now, Error: text,
	})
	if err != nil {
		panic(err)
	}
	return data
}

// deliver publishes a record of a timer to the log.
func (s *fixture) deliver(key string, attempt int, result event.Result, text string) {
	s.t.Helper()
	k, err := keys.Parse(key)
	if err != nil {
		s.t.Fatal(err)
	}
	s.publish(s.names.Subject(k, keys.Delivery), nil, delivery(key, attempt, result, text))
}

// told describes records, deliveries by their results.
func told(records []history.Record) string {
	texts := make([]string, len(records))
	for i, r := range records {
		texts[i] = fmt.Sprintf("%s %s", r.Kind, r.Key.ID)
		if r.Kind == keys.Delivery {
			texts[i] = fmt.Sprintf("%s %s/%d", r.Delivery.Result, r.Key.ID, r.Delivery.Attempt)
		}
		if r.Fault != "" {
			texts[i] = r.Kind + " fault"
		}
	}
	return strings.Join(texts, ", ")
}

// Deliveries are found among the events of their timer. Where nobody delivers nothing is said of them.
func TestSearchFindsDeliveries(t *testing.T) {
	t.Parallel()
	const key = "pay:order:callback:\xffA-42"
	names := keys.Names{Prefix: "x.y", Stream: "X"}
	s := newStreams(t, testenv.NATS(t), names)
	s.fire(key, 1)
	s.await(names.FiredStream(), 1)
	r := history.New(s.js, names).WithFirstWindow(200)
	r.Work, r.LogWait = time.Minute, time.Minute // a busy machine needs more than a second
	p, err := r.Search(t.Context(), history.Query{Key: parseKey(t, key)}, "", 0)
	if err != nil || told(p.Records) != "fired \xffA-42" || len(p.Streams) != 2 || p.Place != "" {
		t.Fatalf("without the log: %s, %+v, %v", told(p.Records), p.Streams, err)
	}
	s.log()
	for i := range 500 {
		s.deliver(fmt.Sprint("pay:order:callback:", i), 1, event.ResultDelivered, "")
	}
	s.deliver(key, 1, event.ResultRetry, "502 Bad Gateway")
	s.await(names.DeliveryStream(), 501)
	s.fire(key, 2)
	s.await(names.FiredStream(), 2)
	s.deliver(key, 2, event.ResultPostponed, "<b>\u202e")
	s.deliver("pay:order:callback:B-42", 1, event.ResultDead, "410 Gone")
	s.await(names.DeliveryStream(), 503)
	const byKey = "postponed \xffA-42/2, fired \xffA-42, retry \xffA-42/1, fired \xffA-42"
	for _, c := range []struct {
		name  string
		work  time.Duration // 1: each page is one window
		query history.Query
		want  string
	}{
		{"key", time.Second, history.Query{Key: parseKey(t, key)}, byKey},
		{"key, window by window", 1, history.Query{Key: parseKey(t, key)}, byKey},
		{"text", time.Second, history.Query{Namespace: keys.Namespace{App: "pay"}, Text: "-42"}, "dead B-42/1, " +
			byKey},
		{"deliveries", time.Second, history.Query{Text: "-42", Kind: keys.Delivery},
			"dead B-42/1, postponed \xffA-42/2, retry \xffA-42/1"},
		{"reasons", time.Second, history.Query{Why: "bad gateway", Kind: keys.Delivery}, "retry \xffA-42/1"},
	} {
		r.Work = c.work
		if got := told(all(t, r, c.query, 2)); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
	r.Work = time.Minute
	p, err = r.Search(t.Context(), history.Query{Key: parseKey(t, key)}, "1.1", 0) // of a page that knew two streams
	if got := told(p.Records); err != nil || got != "postponed \xffA-42/2, retry \xffA-42/1" {
		t.Errorf("a place without the log: %s, %v", got, err)
	}
}

// Any message in the log is shown in its true kind, and the deliveries beside it are found.
func TestSearchAmongHostileDeliveries(t *testing.T) {
	t.Parallel()
	names := keys.Names{}
	s := newStreams(t, testenv.NATS(t), names)
	s.log()
	const key, subject = "app:m:t:order 42", "timers.delivery.app.m.t"
	for _, data := range []string{
		"", "order 42", "\xff\xfe order 42 {", "null order 42", `{"subject":"app:m:t:order 42"}`,
		`{"id":"x","result":"dead","subject":"order 42"}`,
		`{"id":"x","result":"dead","subject":"app:m:t:order 42%zz` + strings.Repeat("%", 50_000) + `"}`,
		`{"id":"x","result":"dead","subject":"app:m:t:order 42","time":"9999-12-31T23:59:59-23:59"}`,
		strings.Repeat("[", 100_000) + "order 42",
	} {
		s.publish(subject, nil, []byte(data))
	}
	s.publish("timers.delivery.a.b.c", nil, delivery(key, 9, event.ResultDead, "")) // of another timer
	s.publish(subject, nil, delivery(key, 2, "\u202e<b>", strings.Repeat("x", 10_000)))
	s.deliver(key, 1, event.ResultRetry, "")
	s.await(names.DeliveryStream(), 12)
	r := history.New(s.js, names)
	r.Work, r.LogWait = time.Minute, time.Minute // a busy machine needs more than a second
	for faults, q := range map[int]history.Query{3: {Key: parseKey(t, key)},
		8: {Namespace: keys.Namespace{App: "app"}, Text: "order 42"}} {
		got := told(all(t, r, q, 3))
		if want := "retry order 42/1, \u202e<b> order 42/2" + strings.Repeat(", delivery fault", faults); got != want {
			t.Errorf("%+v: %q, want %q", q, got, want)
		}
	}
	for _, record := range all(t, r, history.Query{Kind: keys.Delivery}, 0) {
		if len(record.Fault) > 2000 {
			t.Errorf("a fault of %d bytes: %.300s", len(record.Fault), record.Fault)
		}
	}
}

// Without the right to read the log, the events show soon, with the missing right. Once the log is readable, the next
// page finds its records.
func TestSearchWithoutRightsToTheLog(t *testing.T) {
	t.Parallel()
	for _, denied := range []string{"$JS.API.STREAM.INFO.TIMERS_DELIVERY", "$JS.API.CONSUMER.CREATE.TIMERS_DELIVERY.>",
		"$JS.API.CONSUMER.MSG.NEXT.TIMERS_DELIVERY.>"} {
		t.Run(denied, func(t *testing.T) {
			t.Parallel()
			nats1 := testenv.NATS(t, func(o *server.Options) {
				o.Users = []*server.User{
					{Username: "timerd", Password: "pw"},
					{Username: "less", Password: "pw", Permissions: &server.Permissions{
						Publish: &server.SubjectPermission{Allow: []string{"$JS.API.>"}, Deny: []string{denied}},
					}},
				}
			})
			names := keys.Names{}
			s := newStreams(t, nats1, names, nats.UserInfo("timerd", "pw"))
			s.log()
			s.fire("app:m:t:1", 1)
			s.await(names.FiredStream(), 1)
			s.deliver("app:m:t:1", 1, event.ResultDelivered, "")
			s.await(names.DeliveryStream(), 1)
			s.fire("app:m:t:1", 2)
			s.await(names.FiredStream(), 2)
			r := history.New(nats1.JetStream(nats.UserInfo("less", "pw")), names)
			q := history.Query{Key: parseKey(t, "app:m:t:1")}
			for range 10 { // the first waits for the log, and the others do not
				p, err := r.Search(t.Context(), q, "", 0)
				if err != nil || told(p.Records) != "fired 1, fired 1" || p.Place != "" || len(p.Streams) != 3 ||
					!strings.Contains(p.Streams[2].Away, strings.TrimSuffix(denied, ">")) || p.Streams[2].Beginning {
					t.Fatalf("%s, %+v, %v", told(p.Records), p, err)
				}
			}
			p, err := r.Search(t.Context(), q, "", 1)
			if err != nil || told(p.Records) != "fired 1" || p.Place == "" {
				t.Fatalf("the first page: %s, %+v, %v", told(p.Records), p, err)
			}
			if p, err = history.New(s.js, names).Search(t.Context(), q, p.Place, 0); err != nil ||
				told(p.Records) != "delivered 1/1, fired 1" {
				t.Errorf("the next page: %s, %+v, %v", told(p.Records), p, err)
			}
			if _, err := r.Search(t.Context(), history.Query{Kind: keys.Delivery}, "", 0); err == nil {
				t.Error("no error where nothing else is looked for")
			}
		})
	}
}
