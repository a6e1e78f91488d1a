package deliver

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/backoff"
)

// waitShare divides the places: that many further deliveries may wait for their turn in this process.
const waitShare = 4

// lanes limits the events that a process has in hand.
type lanes struct {
	calls   int  // running calls
	waiting int  // deliveries that may wait for their turn in the process, for a moment
	oneHost bool // all calls go to one host: nobody else could use a place
}

func (l lanes) all() int { return l.calls + l.waiting }

// lanes returns the limits for a configuration. If all calls go to one host, the limit is the host's own, and further
// events wait in JetStream.
func (d *Deliverer) lanes(config *Config) lanes {
	if concurrency, ok := config.oneHost(); ok {
		return lanes{calls: min(concurrency, d.Calls), oneHost: true}
	}
	return lanes{calls: d.Calls, waiting: d.Calls / waitShare}
}

// worker takes events of a group and delivers them.
type worker struct {
	d        *Deliverer
	durable  string
	lanes    lanes
	rules    *rules
	places   *places
	waiting  chan struct{}   // has a value for each delivery waiting for its turn in the process
	cut      context.Context // ends when running calls must end
	fetching context.Context // ends when no more events may be begun
	stop     context.CancelFunc
	lost     chan struct{} // has a value if the group may use another file, or its consumer is gone
}

func newWorker(ctx, cut context.Context, d *Deliverer, durable string, r *routes) *worker {
	l := d.lanes(r.config)
	w := &worker{
		d: d, durable: durable, lanes: l, rules: newRules(r), places: &places{most: l.calls, free: l.oneHost},
		waiting: make(chan struct{}, l.waiting), cut: cut, lost: make(chan struct{}, 1),
	}
	w.fetching, w.stop = context.WithCancel(ctx)
	return w
}

// run delivers until w.fetching ends, and goes on after any error.
func (w *worker) run() {
	d := w.d
	defer d.state.setTaking(nil)
	pace := backoff.Backoff{Policy: backoff.Policy{First: time.Second, Longest: 30 * time.Second}, Logger: d.Logger}
	for {
		from := client.NewConsumer(d.js)
		from.Stream, from.Prefix = d.Names.FiredStream(), d.Names.SubjectPrefix()
		from.Durable = w.durable
		from.Concurrency = w.lanes.all()
		from.StopTimeout = maxTimeout + time.Second
		from.Logger = slog.New(quietHandler{d.Logger.Handler()})
		err := from.ConsumeDurable(w.fetching, func(ctx context.Context,
			ev event.Event) error {
			return d.handle(ctx, w, ev)
		})
		if w.fetching.Err() != nil {
			if err != nil {
				d.Logger.Warn("some deliveries were not finished; they will be repeated", "consumer", w.durable, "err",
					err)
			}
			return
		}
		d.state.setTaking(err)
		w.tellLost()
		if !backoff.Sleep(w.fetching, pace.Fail("deliveries have stopped, trying again", err, "consumer", w.durable)) {
			return
		}
		d.state.setTaking(nil)
	}
}

// tellLost makes the process check the group's file.
func (w *worker) tellLost() {
	select {
	case w.lost <- struct{}{}:
	default:
	}
}

// errOtherFile means that an event is for processes with another file.
var errOtherFile = errors.New("the group uses another file")

// find returns the endpoint of an event, with its routes; nil if no process has to deliver the event. If this process's
// file does not match the event, another file may match it by now, and this process cannot judge that. So it returns
// nil only if the group still uses this process's file after the event came. The error gives the event back.
func (w *worker) find(ctx context.Context, ev event.Event) (*routes, *Endpoint, error) {
	for {
		r, changed := w.rules.get()
		if e := r.config.Find(ev.Key); e != nil && r.covers.covers(ev.Key, client.Sequence(ctx)) {
			return r, e, nil
		}
		yes, err := r.still.answer(w.fetching)
		if yes && err == nil {
			return r, nil, nil
		}
		w.tellLost()
		select {
		case <-changed:
		case <-time.After(lookEvery):
		case <-w.fetching.Done():
			return nil, nil, client.GiveBack(errOtherFile)
		}
	}
}

// admit begins a call of a host, or returns the wait before the next try. A delivery may wait in the process for its
// turn, for a moment, if few deliveries do so or if no other delivery could use its place.
func (w *worker) admit(e *Endpoint, host string) (*call, *held) {
	until := time.Now().Add(patienceInTurn)
	call, wait := w.d.hosts.begin(host, e, w.places)
	if wait == nil || !w.mayWait(wait, until) {
		return call, wait
	}
	if !w.lanes.oneHost {
		select {
		case w.waiting <- struct{}{}:
			defer func() { <-w.waiting }()
		default:
			return nil, wait
		}
	}
	for wait != nil && w.mayWait(wait, until) && backoff.Sleep(w.fetching, wait.wait) {
		call, wait = w.d.hosts.begin(host, e, w.places)
	}
	return call, wait
}

func (w *worker) mayWait(h *held, until time.Time) bool {
	return !h.circuit && time.Now().Add(h.wait).Before(until)
}

// quietHandler leaves out the client's lines about single events: the log of deliveries has these, and there may be
// thousands a second while hosts are dead.
type quietHandler struct{ slog.Handler }

// WithAttrs recognises a single event's logger by its attempt.
func (q quietHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	next := q.Handler.WithAttrs(attrs)
	if slices.ContainsFunc(attrs, func(a slog.Attr) bool { return a.Key == "attempt" }) {
		return errorsOnly{next}
	}
	return quietHandler{next}
}

// errorsOnly passes on errors only.
type errorsOnly struct{ slog.Handler }

func (errorsOnly) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelError }
