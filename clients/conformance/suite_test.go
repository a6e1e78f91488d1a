package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/config"
	"github.com/timerd-io/timerd/internal/service"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// patience bounds each wait.
const patience = 30 * time.Second

// run replaces {run} in the cases: it keeps the keys of several runs on one timerd apart.
const run = "go"

// suite is cases.json.
type suite struct {
	Version  int
	Retry    string // the TIMERD_RETRY of the timerd that the cases run on
	Producer []struct {
		Name  string
		Steps []step
	}
	Timers    []timerCase
	Event     string // the message of a case under Consumer that has none of its own
	Consumer  []json.RawMessage
	Durables  []durableCase
	prefix    string
	timers    *client.Timers
	rdb       *redis.Client
	js        jetstream.JetStream
	consuming client.Consumer // that the cases under Consumer begin with
}

// octets are bytes in the cases: a text, repeated perhaps, or base64.
type octets struct {
	Text   *string
	Times  int
	Then   string
	Base64 []byte
}

func (o *octets) UnmarshalJSON(b []byte) error {
	if b[0] == '"' {
		return json.Unmarshal(b, &o.Text)
	}
	type plain octets
	return strictly(b, (*plain)(o))
}

func (o *octets) bytes() []byte {
	switch {
	case o == nil:
		return nil
	case o.Text == nil:
		return append([]byte{}, o.Base64...)
	}
	return []byte(strings.Repeat(*o.Text, max(1, o.Times)) + o.Then)
}

// setting is a call of Set or Repeat.
type setting struct {
	Key       string // as an event has it: %XX for some bytes
	Payload   *octets
	AfterMS   *int64 `json:"after_ms"`
	AtInMS    *int64 `json:"at_in_ms"` // from now
	AtMS      *int64 `json:"at_ms"`
	EveryMS   *int64 `json:"every_ms"`
	Cron, TZ  string // of Repeat, as what follows
	FromInMS  *int64 `json:"from_in_ms"`
	UntilInMS *int64 `json:"until_in_ms"`
	Times     *int   `json:"times"`
	CatchupMS *int64 `json:"catchup_ms"`
	LateMS    *int64 `json:"late_ms"`
	LateDrop  bool   `json:"late_drop"`
	Attempt   *int   `json:"attempt"`
	NX, XX    bool
	Unless    *string // guards
	If        *string
	Trace     string
}

// strictly decodes JSON, and refuses fields unknown to this runner.
func strictly(b []byte, to any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(to); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more than one value")
	}
	return nil
}

// replace returns a text with its placeholders replaced; names has pairs of a placeholder and its value.
func replace(text string, names ...string) string { return strings.NewReplacer(names...).Replace(text) }

func TestConformance(t *testing.T) {
	text, err := os.ReadFile("cases.json")
	if err != nil {
		t.Fatal(err)
	}
	s := suite{prefix: "conf-" + run}
	if err := strictly([]byte(replace(string(text), "{run}", run, "{prefix}", s.prefix)), &s); err != nil {
		t.Fatal(err)
	}
	if s.Version != 1 {
		t.Fatalf("version %d of the cases, this runner knows 1", s.Version)
	}
	s.serve(t)
	t.Run("producer", s.producer)
	t.Run("timers", s.fire)
	t.Run("consumer", s.consumer)
	t.Run("durables", s.durables)
}

// serve starts Redis, NATS and timerd.
func (s *suite) serve(t *testing.T) {
	redisServer, natsServer := testenv.Redis(t), testenv.NATS(t)
	for name, value := range map[string]string{
		"TIMERD_REDIS_URL": redisServer.URL(0), "TIMERD_NATS_URL": natsServer.URL(), "TIMERD_NAMESPACES": "*",
		"TIMERD_RETRY": s.Retry, "TIMERD_HTTP_ADDR": "off",
	} {
		t.Setenv(name, value)
	}
	c, err := config.Read(config.SectionRedis | config.SectionNATS | config.SectionService)
	if err != nil {
		t.Fatal(err)
	}
	var log testenv.Output
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- service.Service{Config: c, Version: "conformance", Logger: log.Logger()}.RunOn(ctx, service.Listeners{})
	}()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("timerd: %v\n%s", err, &log)
		}
	})
	log.Wait(t, patience, "timerd is running")

	s.rdb, s.js = redisServer.Client(), natsServer.JetStream()
	s.timers = client.New(s.rdb)
	s.timers.Propagator = tracer{}
	stream := strings.ToUpper(s.prefix)
	for name, kind := range map[string]string{"": keys.Fired, "_RETRY": keys.Retry, "_DEAD": keys.Dead} {
		cfg := jetstream.StreamConfig{Name: stream + name, Subjects: []string{keys.SubjectAll(s.prefix, kind)},
			AllowDirect: true}
		if _, err := s.js.CreateStream(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
	}
	s.consuming = client.Consumer{Stream: stream, Prefix: s.prefix}
}

// now returns the time of the Redis server.
func (s *suite) now(t *testing.T) time.Time {
	t.Helper()
	now, err := s.rdb.Time(t.Context()).Result()
	if err != nil {
		t.Fatal(err)
	}
	return now
}

// tracer is a Propagator. It hands on the traceparent that a context has as the value of tracer{}.
type tracer struct{}

func (tracer) Inject(ctx context.Context, carrier map[string]string) {
	if parent, ok := ctx.Value(tracer{}).(string); ok {
		carrier["traceparent"] = parent
	}
}

func (tracer) Extract(ctx context.Context, _ map[string]string) context.Context { return ctx }

// consume consumes a namespace until the function that it returns is called.
func (s *suite) consume(t *testing.T, c client.Consumer, namespace string, handler client.Handler) (stop func()) {
	t.Helper()
	own := client.NewConsumer(s.js)
	own.Stream, own.Prefix, own.Durable = c.Stream, c.Prefix, c.Durable
	own.Concurrency, own.AckWait, own.MaxAckPending = c.Concurrency, c.AckWait, c.MaxAckPending
	var log testenv.Output
	own.Logger = log.Logger()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- own.Consume(ctx, namespace, handler) }()
	return func() {
		t.Helper()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Consume: %v\n%s", err, &log)
		}
	}
}

// action is a handler's action.
type action struct {
	Do      string
	MS      int64
	Text    *octets
	Because *action
}

func (a *action) err() error {
	if a == nil || a.Do == "ok" {
		return nil
	}
	reason, delay := error(nil), time.Duration(a.MS)*time.Millisecond
	if a.Text != nil {
		reason = errors.New(string(a.Text.bytes()))
	}
	if because := a.Because.err(); because != nil {
		reason = fmt.Errorf("%w: %w", reason, because)
	}
	switch a.Do {
	case "fail":
		return reason
	case "postpone":
		return client.Postpone(delay, reason)
	case "retry_after":
		return client.RetryAfter(delay, reason)
	case "dead":
		return client.Dead(reason)
	}
	panic("no such action: " + a.Do)
}

// fields has the visible fields of something, by the cases' names.
type fields map[string]any

// check compares the fields that a case names.
func (f fields) check(t *testing.T, what string, want map[string]json.RawMessage) {
	t.Helper()
	for name, raw := range want {
		got, known := f[name]
		if name == "key" {
			got = keys.EncodeText(got.(string))
			raw, _ = json.Marshal(keys.EncodeText(decodeKey(t, strings.Trim(string(raw), `"`))))
		}
		if !known {
			t.Fatalf("%s: this runner knows no field %q", what, name)
		}
		if b, isBytes := got.([]byte); isBytes {
			var o *octets
			if err := strictly(raw, &o); err != nil {
				t.Fatal(err)
			}
			if wanted := o.bytes(); (o == nil) != (b == nil) || !bytes.Equal(wanted, b) {
				t.Errorf("%s: %s is %q, want %q", what, name, b, wanted)
			}
			continue
		}
		shown, err := json.Marshal(got)
		if err != nil {
			t.Fatal(err)
		}
		if !sameJSON(shown, raw) {
			t.Errorf("%s: %s is %s, want %s", what, name, shown, raw)
		}
	}
}

func sameJSON(a, b []byte) bool {
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil &&
		fmt.Sprintf("%#v", x) == fmt.Sprintf("%#v", y)
}

// eventFields returns the fields seen by a handler.
func eventFields(e client.Event) fields {
	f := fields{
		"id": e.ID, "origin": e.FirstID(), "key": e.Key.String(), "app": e.Key.App, "module": e.Key.Module,
		"type": e.Key.Type, "timer_id": e.Key.ID,
		"due_ms": e.Due.UnixMilli(), "time_ms": e.Time.UnixMilli(), "attempt": e.Attempt,
		"max_attempts": orNull(e.MaxAttempts),
		"trigger":      orNull(e.Trigger), "payload": e.Data, "content_type": orNull(e.ContentType),
		"data_status": orNull(e.Status),
		"late_ms":     nil, "late_drop": e.Late.Drop, "repeat": orNull(e.Repeat), "occurrence": orNull(e.Occurrence),
	}
	f["traceparent"], f["tracestate"] = orNull(e.TraceParent), orNull(e.TraceState)
	if e.Late.Given {
		f["late_ms"] = e.Late.Most.Milliseconds()
	}
	return f
}

// orNull returns nil for the zero value.
func orNull[T comparable](v T) any {
	var zero T
	if v == zero {
		return nil
	}
	return v
}

// wantDead is the expectation of a dead letter.
type wantDead struct {
	Subject    string
	Headers    map[string]*octets
	Attributes map[string]json.RawMessage
	Reason     string  `json:"dead_reason"` // or its beginning, if this ends with a colon and a space
	LastError  *string `json:"last_error"`
	Payload    *octets
	Attempt    int
}

func (w *wantDead) check(t *testing.T, data []byte) {
	t.Helper()
	e, err := event.Parse(data)
	if err != nil {
		t.Fatalf("the dead letter is no event: %v\n%s", err, data)
	}
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(data, &raw); err != nil {
		t.Fatal(err)
	}
	attributes := fields{}
	for name := range w.Attributes {
		attributes[name] = raw[name]
	}
	attributes.check(t, "dead letter", w.Attributes)
	begins := strings.HasSuffix(w.Reason, ": ") && strings.HasPrefix(e.DeadReason, w.Reason)
	if e.Type != event.TypeDead || e.DeadReason != w.Reason && !begins || w.Attempt != 0 && e.Attempt != w.Attempt {
		t.Errorf("dead letter of type %q, reason %q, attempt %d; want %+v", e.Type, e.DeadReason, e.Attempt, w)
	}
	if w.LastError != nil && e.LastError != *w.LastError {
		t.Errorf("dead letter with last error %q, want %q", e.LastError, *w.LastError)
	}
	if w.Payload != nil && !bytes.Equal(e.Data, w.Payload.bytes()) {
		t.Errorf("dead letter with payload %q, want %q", e.Data, w.Payload.bytes())
	}
}

func decodeKey(t *testing.T, text string) string {
	t.Helper()
	key, err := keys.DecodeText(text)
	if err != nil {
		t.Fatal(err)
	}
	return key
}
