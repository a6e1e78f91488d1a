package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
)

// consumerCase is a message in the stream, the handler's action, and the result.
type consumerCase struct {
	Name, Type string
	Namespace  string  // of the consumer, unless it is conf:{run}:{type}
	Subject    string  // of the message, unless it is the timer's
	Members    string  // that {members} of the event stands for
	Message    *octets // in place of the event
	Handler    *action // nil: it is not called
	TakesMS    int64   `json:"takes_ms"`
	AckWaitMS  int64   `json:"ack_wait_ms"`
	Want       struct {
		Calls      *int // of the handler; 1 unless it says otherwise
		Deliveries *uint64
		Event      map[string]json.RawMessage
		Retry      *struct {
			Subject string
			Headers map[string]*octets
			Without []string
		}
		Dead *wantDead
	}
}

func (s *suite) consumer(t *testing.T) {
	for _, raw := range s.Consumer {
		var c consumerCase
		if err := strictly(raw, &c); err != nil {
			t.Fatalf("%v: %s", err, raw)
		}
		key := keys.Key{App: "conf", Module: run, Type: c.Type, ID: "1"}
		text := replace(string(raw), "{key}", key.String())
		if err := strictly([]byte(text), &c); err != nil {
			t.Fatal(err)
		}
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			s.consumeOne(t, key, &c)
		})
	}
}

func (s *suite) consumeOne(t *testing.T, key keys.Key, c *consumerCase) {
	message := []byte(replace(s.Event, "{key}", key.String(), "{type}", c.Type, "{members}", c.Members))
	if c.Message != nil {
		message = c.Message.bytes()
	}
	subject := c.Subject
	if subject == "" {
		subject = key.Subject(s.prefix, keys.Fired)
	}
	ack, err := s.js.Publish(t.Context(), subject, message)
	if err != nil {
		t.Fatal(err)
	}
	namespace := c.Namespace
	if namespace == "" {
		namespace = fmt.Sprintf("%s:%s:%s", key.App, key.Module, key.Type)
	}
	var mu sync.Mutex
	var seen []client.Event
	consumer := s.consuming
	consumer.Durable, consumer.AckWait = "conf-"+c.Type, time.Duration(c.AckWaitMS)*time.Millisecond
	stop := s.consume(t, consumer, namespace, func(ctx context.Context, e client.Event) error {
		mu.Lock()
		seen = append(seen, e)
		mu.Unlock()
		select {
		case <-time.After(time.Duration(c.TakesMS) * time.Millisecond):
		case <-ctx.Done():
		}
		return c.Handler.err()
	})
	deliveries := s.settled(t, consumer, ack.Sequence)
	stop()

	calls := 1
	if c.Want.Calls != nil {
		calls = *c.Want.Calls
	}
	if len(seen) != calls {
		t.Fatalf("the handler was called %d times, want %d", len(seen), calls)
	}
	if want := c.Want.Deliveries; want != nil && deliveries != *want {
		t.Errorf("JetStream delivered %d times, want %d", deliveries, *want)
	}
	if c.Want.Event != nil {
		eventFields(seen[0]).check(t, "event", c.Want.Event)
	}
	retries := s.letters(t, "_RETRY", key.Subject(s.prefix, keys.Retry))
	if w := c.Want.Retry; w == nil {
		wantNone(t, retries)
	} else if len(retries) != 1 {
		t.Errorf("%d retry requests, want 1", len(retries))
	} else {
		m := retries[0]
		if m.Subject != w.Subject || !bytes.Equal(m.Data, message) {
			t.Errorf("retry on %s of %q, want on %s the event as it came", m.Subject, m.Data, w.Subject)
		}
		checkHeaders(t, m, w.Headers, w.Without)
	}
	if w := c.Want.Dead; w == nil {
		wantNone(t, s.letters(t, "_DEAD", key.Subject(s.prefix, keys.Dead)))
	} else if letters := s.letters(t, "_DEAD", w.Subject); len(letters) != 1 {
		t.Errorf("%d dead letters, want 1", len(letters))
	} else {
		checkHeaders(t, letters[0], w.Headers, nil)
		w.check(t, letters[0].Data)
	}
}

func wantNone(t *testing.T, all []*jetstream.RawStreamMsg) {
	t.Helper()
	for _, m := range all {
		t.Errorf("there is %s: %s", m.Subject, m.Data)
	}
}

func checkHeaders(t *testing.T, m *jetstream.RawStreamMsg, want map[string]*octets, without []string) {
	t.Helper()
	for name, value := range want {
		if got := m.Header.Get(name); got != string(value.bytes()) {
			t.Errorf("%s with header %s %q, want %q", m.Subject, name, got, value.bytes())
		}
	}
	for _, name := range without {
		if got := m.Header.Values(name); got != nil {
			t.Errorf("%s with header %s %q, want none", m.Subject, name, got)
		}
	}
}

// settled waits until a durable consumer has acknowledged its events up to one, and returns how many deliveries that
// took.
func (s *suite) settled(t *testing.T, c client.Consumer, seq uint64) (deliveries uint64) {
	t.Helper()
	testenv.Eventually(t, patience, func() bool {
		found, err := s.js.Consumer(t.Context(), c.Stream, c.Durable)
		if errors.Is(err, jetstream.ErrConsumerNotFound) {
			return false
		}
		if err != nil {
			t.Fatal(err)
		}
		deliveries = found.CachedInfo().Delivered.Consumer
		return found.CachedInfo().AckFloor.Stream >= seq
	}, "acknowledgement")
	return deliveries
}

// letters returns the messages on a subject of one of the streams.
func (s *suite) letters(t *testing.T, stream, subject string) (all []*jetstream.RawStreamMsg) {
	t.Helper()
	letters, err := s.js.Stream(t.Context(), s.consuming.Stream+stream)
	if err != nil {
		t.Fatal(err)
	}
	for seq := uint64(1); ; {
		m, err := letters.GetMsg(t.Context(), seq, jetstream.WithGetMsgSubject(subject))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all, seq = append(all, m), m.Sequence+1
	}
}

// timerCase is a timer, the handler's action at each of its firings, and the events it gets.
type timerCase struct {
	Name string
	setting
	Handlers []action
	Want     struct {
		Events []map[string]json.RawMessage
		Dead   *wantDead
	}
}

func (s *suite) fire(t *testing.T) {
	for _, c := range s.Timers {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			s.fireOne(t, &c)
		})
	}
}

func (s *suite) fireOne(t *testing.T, c *timerCase) {
	do := "set"
	if c.EveryMS != nil {
		do = "repeat"
	}
	due, _, err := s.call(t, do, c.setting)
	if err != nil {
		t.Fatal(err)
	}
	key, err := keys.Parse(decodeKey(t, c.Key))
	if err != nil {
		t.Fatal(err)
	}
	events := make(chan client.Event, len(c.Handlers))
	next := make(chan *action, len(c.Handlers))
	for i := range c.Handlers {
		next <- &c.Handlers[i]
	}
	parts := strings.SplitN(c.Key, ":", 4)
	stop := s.consume(t, client.Consumer{}, strings.Join(parts[:3], ":"),
		func(_ context.Context, e client.Event) error {
			select {
			case a := <-next:
				events <- e
				return a.err()
			default:
				t.Errorf("surplus event %+v", e)
				return nil
			}
		})
	defer stop()
	first := ""
	for i, want := range c.Want.Events {
		select {
		case e := <-events:
			f := eventFields(e)
			if i == 0 {
				first = e.ID
			}
			if e.FirstID() == first {
				f["origin"] = "first"
			}
			if e.Due.Equal(due) {
				f["due"] = "as set"
			} else {
				f["due"] = e.Due
			}
			if id := want["id"]; id != nil {
				want["id"] = json.RawMessage(replace(string(id), "{due}", fmt.Sprint(e.Due.UnixMilli())))
			}
			f.check(t, fmt.Sprintf("event %d", i+1), want)
		case <-time.After(patience):
			t.Fatalf("event %d of %d did not come", i+1, len(c.Want.Events))
		}
	}
	if c.Want.Dead == nil {
		return
	}
	letters, err := s.js.Stream(t.Context(), keys.Names{}.DeadStream())
	if err != nil {
		t.Fatal(err)
	}
	var m *jetstream.RawStreamMsg
	testenv.Eventually(t, patience, func() error {
		m, err = letters.GetLastMsgForSubject(t.Context(), key.Subject(keys.DefaultPrefix, keys.Dead))
		return err
	}, "dead letter")
	for name, value := range c.Want.Dead.Attributes {
		c.Want.Dead.Attributes[name] = json.RawMessage(replace(string(value), "{first}", first))
	}
	c.Want.Dead.check(t, m.Data)
}

// durableCase is a consumer, and its settings in JetStream.
type durableCase struct {
	Name, Namespace, Durable, Stream string
	Concurrency                      int
	AckWaitMS                        int64 `json:"ack_wait_ms"`
	MaxAckPending                    int   `json:"max_ack_pending"`
	Want                             json.RawMessage
}

func (s *suite) durables(t *testing.T) {
	for _, c := range s.Durables {
		t.Run(c.Name, func(t *testing.T) {
			consumer := client.NewConsumer(s.js)
			consumer.Durable, consumer.Stream, consumer.Concurrency = c.Durable, c.Stream, c.Concurrency
			consumer.AckWait, consumer.MaxAckPending = time.Duration(c.AckWaitMS)*time.Millisecond, c.MaxAckPending
			var refusal wanted
			_ = json.Unmarshal(c.Want, &refusal)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			done := make(chan error, 1)
			go func() {
				done <- consumer.Consume(ctx, c.Namespace, func(context.Context, client.Event) error { return nil })
			}()
			if refusal.Error != "" {
				if err := <-done; err == nil || !strings.Contains(err.Error(), refusal.Says) {
					t.Errorf("Consume = %v, want it refused, saying %q", err, refusal.Says)
				}
				return
			}
			var want map[string]json.RawMessage
			if err := json.Unmarshal(c.Want, &want); err != nil {
				t.Fatal(err)
			}
			var name string
			if err := json.Unmarshal(want["durable_name"], &name); err != nil {
				t.Fatal(err)
			}
			testenv.Eventually(t, patience, func() bool {
				found, err := s.js.Consumer(t.Context(), keys.DefaultStream, name)
				return err == nil && found.CachedInfo().NumWaiting > 0 // it is being consumed, with its new settings
			}, "consumer")
			found, err := s.js.Consumer(t.Context(), keys.DefaultStream, name)
			if err != nil {
				t.Fatal(err)
			}
			cfg := found.CachedInfo().Config
			fields{
				"durable_name": cfg.Durable, "filter_subject": cfg.FilterSubject, "ack_policy": cfg.AckPolicy,
				"ack_wait_ms": cfg.AckWait.Milliseconds(),
				"max_deliver": cfg.MaxDeliver, "max_ack_pending": cfg.MaxAckPending, "max_waiting": cfg.MaxWaiting,
			}.check(t, "consumer", want)
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}
