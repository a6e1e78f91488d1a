// Package deliver calls HTTP endpoints with the events of timers: webhooks. It is a consumer like any other. What an
// endpoint answers decides whether an event is done, is tried again as a timer, or becomes a dead letter. Deliveries to a
// host that fails are postponed as timers, so that it delays no other.
package deliver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/keys"
)

// DefaultCalls is how many calls one process makes at a time. It is far more than living hosts need: what dead ones take
// is a place for the whole timeout of each call.
const DefaultCalls = 4096

// patienceInTurn is how long a delivery may wait for its turn where nobody else could use its place meanwhile.
const patienceInTurn = 5 * time.Second

// Deliverer calls endpoints. Set its fields before Run, and not after.
type Deliverer struct {
	// Names says what streams and subjects are called.
	Names keys.Names
	// Calls is how many calls are made at a time. Default: DefaultCalls.
	Calls int
	// Proxy says through which proxy a request goes. Default: http.ProxyFromEnvironment.
	Proxy func(*http.Request) (*url.URL, error)
	// EnsureLog makes the stream of the log if it is missing. Default: nothing does.
	EnsureLog func(context.Context) error
	// OnDelivery is told of each delivery; took is 0 where nobody was called. Default: nobody is told.
	OnDelivery func(r event.Delivery, took time.Duration)
	// OnCircuit is told of each host whose circuit opens, for how long, or closes: for 0. Default: nobody is told.
	OnCircuit func(host string, length time.Duration)
	// OnUnlogged is told of each delivery that could not be logged. Default: nobody is told.
	OnUnlogged func()
	// Logger gets a line for each circuit that opens or closes, each dead letter, and lasting trouble.
	// Default: slog.Default().
	Logger *slog.Logger

	js      jetstream.JetStream
	hosts   *hosts
	relief  relief
	reloads chan *Config
	state   state

	logPatience atomic.Int64 // ns
	logTry      time.Duration
	logFails    atomic.Bool // the last record could not be written, for all that was tried
}

// New returns a Deliverer on the caller's connection to NATS, which the caller goes on to own. Run uses config.
func New(js jetstream.JetStream, config *Config) *Deliverer {
	d := &Deliverer{
		Calls:      DefaultCalls,
		Proxy:      http.ProxyFromEnvironment,
		EnsureLog:  func(context.Context) error { return nil },
		OnDelivery: func(event.Delivery, time.Duration) {},
		OnCircuit:  func(string, time.Duration) {},
		OnUnlogged: func() {},
		Logger:     slog.Default(),
		js:         js,
		logTry:     logTry,
		reloads:    make(chan *Config, 1),
	}
	d.logPatience.Store(int64(logPatience))
	d.hosts = newHosts(d.circuitChanged)
	d.state.set(errStarting)
	d.reloads <- config
	return d
}

// OpenCircuits returns how many hosts are not called because they failed.
func (d *Deliverer) OpenCircuits() int { return d.hosts.openCircuits() }

func (d *Deliverer) circuitChanged(host string, length time.Duration) {
	d.OnCircuit(host, length)
	if length > 0 {
		d.Logger.Warn("host fails, its deliveries are postponed", "host", host, "for", length)
	} else {
		d.Logger.Info("host answers again, its deliveries go on", "host", host)
	}
}

// outcome is what came of a delivery.
type outcome struct {
	result event.Result
	after  *time.Duration // of postponed: when to try again; of retry: no sooner than that; nil: as the policy says
	text   string         // what went wrong
}

// handle delivers an event that a worker got, logs that, and says what is to become of the event.
func (d *Deliverer) handle(ctx context.Context, w *worker, ev event.Event) error {
	routes, e, err := w.find(ctx, ev)
	if e == nil {
		return err
	}
	began := time.Now()
	r := event.Delivery{ID: ev.ID, Origin: ev.FirstID(), Subject: keys.EncodeText(ev.Key.String()), Attempt: ev.Attempt, Time: began.UTC().Truncate(time.Millisecond)}
	o, took := d.deliver(ctx, w, routes, e, ev, &r)
	o.text = e.hide(o.text)
	r.Result, r.Error, r.Duration = o.result, o.text, (took + time.Millisecond - 1).Milliseconds()
	d.log(ctx, ev.Key, r)
	d.OnDelivery(r, took)
	if o.result == event.ResultDead {
		d.Logger.Warn("delivery failed for good, it becomes a dead letter", "key", ev.Key.String(), "attempt", ev.Attempt, "host", r.Host, "err", r.Error)
	}
	return o.err(ctx, ev)
}

// err returns the outcome as client.Consume wants to be told.
func (o outcome) err(ctx context.Context, ev event.Event) error {
	err := errors.New(o.text)
	switch {
	case o.result == event.ResultDelivered:
		return nil
	case o.result == event.ResultPostponed && ctx.Err() != nil:
		return err // which gives it back to JetStream
	case o.result == event.ResultPostponed:
		return client.Postpone(*o.after, err)
	case o.after != nil:
		return client.RetryNoSooner(*o.after, err)
	case o.result == event.ResultDead && !usedUp(ev):
		return client.Dead(err)
	}
	return err
}

// usedUp tells whether the event is the last attempt of its timer, so that timerd makes a dead letter of it if it fails.
func usedUp(ev event.Event) bool { return ev.MaxAttempts > 0 && ev.Attempt >= ev.MaxAttempts }

// deliver makes the call, or holds the delivery back, and fills in what r is to say about the call.
func (d *Deliverer) deliver(ctx context.Context, w *worker, routes *routes, e *Endpoint, ev event.Event, r *event.Delivery) (o outcome, took time.Duration) {
	to, err := e.target(ev)
	if err != nil {
		return outcome{result: event.ResultDead, text: err.Error()}, 0
	}
	r.Host = to.host
	call, wait := w.admit(e, to.host)
	if wait != nil {
		return postpone(e, ev, *wait, time.Now()), 0
	}
	began := time.Now()
	a := d.call(ctx, w.cut, routes, e, to, ev)
	took = time.Since(began)
	open := call.end(a.host, a.status == 0 && !a.host)
	r.Status = a.status
	return d.conclude(e, ev, to, a, open), took
}

// conclude says what is to become of an event after a call. open says that the circuit was open when the call ended.
func (d *Deliverer) conclude(e *Endpoint, ev event.Event, to target, a answer, open bool) outcome {
	switch {
	case a.verdict == delivered:
		return outcome{result: event.ResultDelivered}
	case a.verdict == hopeless:
		return outcome{result: event.ResultDead, text: a.text}
	case a.verdict == cutShort: // it was called, and comes again though it may have expired
		wait := leastWait
		return outcome{result: event.ResultPostponed, after: &wait, text: a.text}
	case a.verdict == returned:
		return postpone(e, ev, held{wait: max(leastWait, a.after), why: a.text}, time.Now())
	case open && a.host: // the delivery cannot help it
		wait := held{wait: leastWait, circuit: true}
		if now := d.hosts.openFor(to.host, e); now != nil {
			wait = *now
		}
		wait.wait, wait.why = max(wait.wait, a.after), a.text
		return postpone(e, ev, wait, time.Now())
	case usedUp(ev):
		return outcome{result: event.ResultDead, text: a.text}
	case a.verdict == deferred:
		return outcome{result: event.ResultRetry, after: &a.after, text: a.text}
	}
	return outcome{result: event.ResultRetry, text: a.text}
}

// postpone returns the outcome of a delivery that has to wait. Where a circuit is open that is at least a tenth of its
// age, so that what has waited for long comes back rarely. Whatever puts it off, it waits until it expires at the latest,
// and is a dead letter then.
func postpone(e *Endpoint, ev event.Event, h held, now time.Time) outcome {
	age := max(now.Sub(ev.Begun()), 0)
	if age >= e.Expire {
		since := "its first event"
		if !ev.Replayed.IsZero() {
			since = "its replay"
		}
		return outcome{result: event.ResultDead, text: fmt.Sprintf("postponed until %v after %s, at most %v: %s",
			age.Round(time.Second), since, e.Expire, h.why)}
	}
	wait := h.wait
	if h.circuit {
		wait = max(wait, age/ageShare)
	}
	wait = max(min(wait, e.Expire-age), leastWait).Round(time.Millisecond)
	return outcome{result: event.ResultPostponed, after: &wait, text: h.why}
}

// call calls an endpoint and reads its answer. It is cut short once cut ends.
func (d *Deliverer) call(ctx, cut context.Context, routes *routes, e *Endpoint, to target, ev event.Event) answer {
	within, cancel := context.WithTimeout(ctx, e.Timeout)
	defer cancel()
	defer context.AfterFunc(cut, cancel)()
	request, err := e.request(within, to, ev, time.Now())
	if err != nil {
		return answer{verdict: hopeless, text: err.Error()}
	}
	response, err := routes.clients[e].Do(request) //nolint:bodyclose // read closes it
	if err != nil {
		if isCrowded(err) {
			d.relief.give(routes.close) // others take what this machine has no more of
		}
		return explain(err, e.Timeout, ctx.Err() != nil || cut.Err() != nil)
	}
	what := e.read(response, cancel)
	return judge(response, what, time.Now())
}

// hide takes secrets out of a text, which a host may have sent back.
func (e *Endpoint) hide(text string) string {
	for _, secret := range e.secrets {
		text = strings.ReplaceAll(text, secret, "[secret]")
	}
	return text
}
