package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

var (
	// ErrNotSet means that NX found a timer or a key, or that XX found none, so nothing was set.
	ErrNotSet = errors.New("not set: NX found the timer, or XX did not")
	// ErrInvalid means that timerd's function library or this package refused the arguments of the call: not a timer
	// key or a namespace, a delay of 0 or less or over 10 years, a payload over the limit, a bad option. Nothing was
	// changed, and repeating the call does not help. The text names the fault.
	ErrInvalid = errors.New("refused")
	// ErrNoLibrary means that this Redis does not have timerd's function library. timerd loads it at its start; after
	// that no timerd needs to run.
	ErrNoLibrary = errors.New(
		"timerd's function library is not in this Redis: start timerd on it once, or run `timerd doctor`")
)

// Outcome is the result of a cancellation.
type Outcome string

const (
	// Cancelled means that the key had pending, held or owed timers, and that they will not fire. An earlier one that
	// was already firing may still fire.
	Cancelled Outcome = "cancelled"
	// Fired means that it is too late: the timer is firing, or has fired within the last 30 seconds, or became, or may
	// have become, a dead letter instead.
	Fired Outcome = "fired"
	// Unknown means that there is no such timer: it was never set, was cancelled before, or fired more than 30 seconds
	// ago.
	Unknown Outcome = "unknown"
)

// State is the state of a timer.
type State string

const (
	// Pending means that the timer is not due yet.
	Pending State = "pending"
	// Held means that the timer is due, and its namespace on hold (client/admin). It can still be cancelled.
	Held State = "held"
	// Owed means that the timer is due, and no timerd has claimed it yet. It can still be cancelled.
	Owed State = "owed"
	// Firing means that a timerd has claimed the timer, or gave it back after perhaps publishing its event.
	Firing State = "firing"
)

// Timer is an unsettled timer: timerd has not recorded yet that its event is in NATS.
type Timer struct {
	State   State     // if it is Firing, the other fields are uncertain
	Due     time.Time // by the Redis server's clock, in UTC, to the millisecond
	Attempt int       // its attempt when it fires; 1 unless it is a retry or was set with another
	Payload []byte    // nil if it fires without one
	// Late is the timer's own limit on lateness: claimed later after its due time, it does not fire; 0 if it has none.
	Late time.Duration
	// Repeat is the timer's repetition, as in its events: "every 5m0s". Occurrence counts from 1. They are empty and 0
	// for a single timer.
	Repeat     string
	Occurrence int64
	// Unless and If are the timer's own guards; "" if it has none.
	Unless, If string
	// TraceParent is the traceparent set with the timer; its payload may have another.
	TraceParent string
}

// When is the due time of a timer: After or At. The zero When is invalid.
type When struct {
	option string
	ms     int64
}

// After makes a timer due d after the Redis server has received the call, by the server's clock. d is rounded up to
// whole milliseconds. It must be positive and at most 10 years.
func After(d time.Duration) When {
	return When{option: "PX", ms: roundedUp(d)}
}

// roundedUp returns d in milliseconds.
func roundedUp(d time.Duration) int64 {
	ms := d.Milliseconds()
	if d%time.Millisecond > 0 {
		ms++
	}
	return ms
}

// At makes a timer due when the Redis server's clock shows t, rounded up to whole milliseconds. If t has passed, it is
// due at once. t must be at most 10 years ahead. At of the zero Time is the zero When, which is invalid.
func At(t time.Time) When {
	if t.IsZero() {
		return When{}
	}
	return When{option: "PXAT", ms: t.Add(time.Millisecond - time.Nanosecond).UnixMilli()}
}

// SetOption is an option of Set and Repeat: NX, XX, Attempt, Late, DropLate, Unless or If for Set. Timers.Repeat lists
// its own.
type SetOption struct{ args []any }

// NX sets the timer only if neither it nor a Redis key of its name exists. Otherwise Set returns ErrNotSet. It may also
// do so after a success: go-redis repeats a call whose reply was lost, and the second call finds the timer that the
// first one set.
func NX() SetOption { return SetOption{[]any{"NX"}} }

// XX sets the timer only if it, or a Redis key of its name, exists. Set returns ErrNotSet otherwise.
func XX() SetOption { return SetOption{[]any{"XX"}} }

// Attempt makes the timer fire as attempt n, at least 1. It overrides an attempt in the payload. Retries count on from
// there.
func Attempt(n int) SetOption { return SetOption{[]any{"ATTEMPT", n}} }

// Late keeps the timer from firing too late to be useful: if it is claimed more than d after its due time, it becomes a
// dead letter instead. Each retry is counted from its own due time. d is rounded up to whole milliseconds, and at most
// 10 years; 0 is no limit, whatever timerd's TIMERD_LATE says.
func Late(d time.Duration) SetOption { return SetOption{[]any{"LATE", roundedUp(d)}} }

// DropLate is Late, but a timer claimed too late is dropped without a dead letter, unless its event may have been
// published before.
func DropLate(d time.Duration) SetOption { return SetOption{[]any{"LATE", roundedUp(d), "DROP"}} }

// Unless lets the timer fire only if a key does not exist when the timer is claimed, in the same atomic step: a timeout
// unless the order is paid. Otherwise the timer ends without an event, and so do its retries. The key has 1 to 1,024
// bytes; in a Redis Cluster it must have the hash tag of the timer's key.
func Unless(key string) SetOption { return SetOption{[]any{"UNLESS", key}} }

// If is Unless, but lets the timer fire only if the key exists.
func If(key string) SetOption { return SetOption{[]any{"IF", key}} }

// Timers sets, cancels and reads timers in Redis through timerd's function library. It needs no NATS, and no running
// timerd once the library is loaded.
//
// A key is app:module:type:id, four non-empty parts of any bytes; only the id may hold colons. Any such key is
// accepted, whatever namespaces timerd is configured for.
//
// Its methods may be called concurrently. An error that wraps none of this package's errors comes from the connection
// or the server: the call may or may not have taken effect, and calling again is safe.
type Timers struct {
	// Propagator, if not nil, reads the trace from the context of Set and SetMany. Set it before the first call.
	Propagator Propagator

	rdb redis.UniversalClient
}

// New returns Timers on rdb: a client for one server, Sentinel or Cluster, on timerd's database. The caller still owns
// rdb and closes it.
//
// While a Redis Cluster moves the slot of a key to another server, Redis refuses calls for the key
// (redis.IsTryAgainError), and nothing changes. A *redis.ClusterClient tries again as often as its MaxRedirects says.
// By default it gives up after about a tenth of a second.
func New(rdb redis.UniversalClient) *Timers { return &Timers{rdb: rdb} }

// Set sets a timer and returns its due time. Setting a pending timer again replaces its due time, payload and attempt;
// a timer that is already due fires as well. A nil payload is an empty one. Once Set has returned without an error the
// timer is in the schedule, as durable as Redis is.
//
// Set returns errors that wrap ErrNotSet, ErrInvalid or ErrNoLibrary.
func (t *Timers) Set(ctx context.Context, key string, payload []byte, when When,
	opts ...SetOption) (due time.Time, err error) {
	s := Setting{Key: key, Payload: payload, When: when, Options: opts}
	if err := s.check(); err != nil {
		return time.Time{}, err
	}
	return s.result(t.rdb.FCall(ctx, "timer_set", []string{key}, s.args(t.trace(ctx))...))
}

func (s Setting) check() error {
	if s.When.option == "" {
		return fmt.Errorf("client: set %q: %w: no time given, use After or At", s.Key, ErrInvalid)
	}
	return nil
}

// args returns the arguments of timer_set after the key, with trace at the end; trace may be empty.
func (s Setting) args(trace []any) []any {
	args := make([]any, 0, 8)
	args = append(args, s.Payload, s.When.option, s.When.ms)
	for _, o := range s.Options {
		args = append(args, o.args...)
	}
	return append(args, trace...)
}

func (s Setting) result(reply *redis.Cmd) (time.Time, error) {
	ms, err := reply.Int64()
	switch {
	case errors.Is(err, redis.Nil):
		return time.Time{}, fmt.Errorf("client: set %q: %w", s.Key, ErrNotSet)
	case err != nil:
		return time.Time{}, fmt.Errorf("client: set %q: %w", s.Key, explain(err))
	}
	return time.UnixMilli(ms).UTC(), nil
}

// Cancel cancels all pending, held and owed timers of a key, deletes the Redis key, and returns the outcome. Once it
// has returned Cancelled they do not fire. A second call returns Unknown. So may the first one: go-redis repeats a call
// whose reply was lost.
//
// Cancel returns errors that wrap ErrInvalid or ErrNoLibrary.
func (t *Timers) Cancel(ctx context.Context, key string) (Outcome, error) {
	c := cancellation{key: key}
	return t.cancelOutcome(ctx, c, c.call(ctx, t.rdb))
}

// cancellation is a call of timer_cancel.
type cancellation struct {
	key  string
	args []any
}

func (c cancellation) call(ctx context.Context, to redis.Cmdable) *redis.Cmd {
	return to.FCall(ctx, "timer_cancel", []string{c.key}, c.args...)
}

// cancelOutcome reads the reply of a cancellation. If too many timers of the key are owed for one call, it calls again
// until none is left.
func (t *Timers) cancelOutcome(ctx context.Context, c cancellation, reply *redis.Cmd) (Outcome, error) {
	text, err := reply.Text()
	some := false
	for redis.HasErrorPrefix(err, "AGAIN timerd has cancelled") {
		some = true
		text, err = c.call(ctx, t.rdb).Text()
	}
	if err != nil {
		return "", fmt.Errorf("client: cancel %q: %w", c.key, explain(err))
	}
	switch outcome := Outcome(text); outcome {
	case Cancelled, Fired, Unknown:
		if some {
			return Cancelled, nil
		}
		return outcome, nil
	}
	return "", fmt.Errorf("client: cancel %q: timer_cancel answered %q, which this version does not know", c.key, text)
}

// Get returns an unsettled timer of a key; found is false if there is none. It changes nothing. Of several timers it
// returns the first of these: the pending one, a pending retry, a held one, an owed one, a firing one.
//
// Get returns errors that wrap ErrInvalid or ErrNoLibrary.
func (t *Timers) Get(ctx context.Context, key string) (timer Timer, found bool, err error) {
	fields, err := t.rdb.FCallRO(ctx, "timer_get", []string{key}).Slice()
	if errors.Is(err, redis.Nil) {
		return Timer{}, false, nil
	}
	if err == nil {
		timer, err = parseTimer(fields)
	}
	if err != nil {
		return Timer{}, false, fmt.Errorf("client: get %q: %w", key, explain(err))
	}
	return timer, true, nil
}

// parseTimer reads the reply of timer_get: alternating names and values. Unknown names are a later version's.
func parseTimer(fields []any) (Timer, error) {
	var timer Timer
	for i := 0; i+1 < len(fields); i += 2 {
		switch value := fields[i+1].(type) {
		case int64:
			switch fields[i] {
			case "due":
				timer.Due = time.UnixMilli(value).UTC()
			case "attempt":
				timer.Attempt = int(value)
			case "occurrence":
				timer.Occurrence = value
			case "late":
				timer.Late = time.Duration(value) * time.Millisecond
			}
		case string:
			switch fields[i] {
			case "payload":
				timer.Payload = []byte(value)
			case "state":
				timer.State = State(value)
			case "repeat":
				timer.Repeat = value
			case "traceparent":
				timer.TraceParent = value
			case "unless":
				timer.Unless = value
			case "if":
				timer.If = value
			}
		}
	}
	if timer.Due.IsZero() || timer.Attempt == 0 {
		return Timer{}, fmt.Errorf("timer_get answered %d fields without a due time and an attempt", len(fields))
	}
	return timer, nil
}

// explain wraps an error reply of Redis in this package's error for it.
func explain(err error) error {
	switch {
	case redis.HasErrorPrefix(err, "timerd: "):
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	case redis.HasErrorPrefix(err, "Function not found"):
		return fmt.Errorf("%w: %w", ErrNoLibrary, err)
	case redis.HasErrorPrefix(err, "unknown command"):
		return fmt.Errorf("%w; it needs Redis 7.0 or later: %w", ErrNoLibrary, err)
	}
	return err
}
