// Package deliver calls HTTP endpoints with the events of timers: webhooks. It is a consumer like any other. The
// endpoint's answer decides whether an event is done, is tried again as a timer, or becomes a dead letter. Deliveries
// to a failing host are postponed as timers, so that it delays no other.
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

// DefaultCalls limits the simultaneous calls of one process. Healthy hosts need far fewer; a dead host holds its places
// for the whole timeout of each call.
const DefaultCalls = 4096

// patienceInTurn is the longest time that a delivery waits for its turn in this process if no other delivery could use
// its place.
const patienceInTurn = 5 * time.Second

// Deliverer calls endpoints. Set its fields before Run, and not after.
type Deliverer struct {
	// Names has the names of streams and subjects.
	Names keys.Names
	// Calls limits simultaneous calls. Default: DefaultCalls.
	Calls int
	// Now returns the time for circuits, rates, postponements, their end and the log. Default: time.Now, by which calls
	// themselves always go: their timeouts, signatures and waits for a turn.
	Now func() time.Time
	// Proxy returns the proxy of a request. Default: http.ProxyFromEnvironment.
	Proxy func(*http.Request) (*url.URL, error)
	// EnsureLog creates the stream of the log if it is missing. By default nothing does.
	EnsureLog func(context.Context) error
	// OnDelivery is called for each delivery; took is 0 without a call. By default it does nothing.
	OnDelivery func(r event.Delivery, took time.Duration)
	// OnCircuit is called for each circuit that opens for a length, or closes: length 0. By default it does nothing.
	OnCircuit func(host string, length time.Duration)
	// OnUnlogged is called for each delivery that could not be logged. By default it does nothing.
	OnUnlogged func()
	// Logger gets a line for each circuit that opens or closes, each dead letter, and lasting faults. Default:
	// slog.Default().
	Logger *slog.Logger

	js      jetstream.JetStream
	hosts   *hosts
	relief  relief
	reloads chan *Config
	state   state

	logPatience atomic.Int64 // ns
	logTry      time.Duration
	logFails    atomic.Bool // the last record could not be written, after all tries
}

// New returns a Deliverer on the caller's connection to NATS, which the caller still owns. Run uses config.
func New(js jetstream.JetStream, config *Config) *Deliverer {
	d := &Deliverer{
		Calls:      DefaultCalls,
		Now:        time.Now,
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

// OpenCircuits returns the number of hosts with an open circuit.
func (d *Deliverer) OpenCircuits() int { return d.hosts.openCircuits() }

func (d *Deliverer) circuitChanged(host string, length time.Duration) {
	d.OnCircuit(host, length)
	if length > 0 {
		d.Logger.Warn("host fails: postponing its deliveries", "host", host, "for", length)
	} else {
		d.Logger.Info("host answers again: resuming its deliveries", "host", host)
	}
}

// outcome is the result of a delivery.
type outcome struct {
	result event.Result
	after  *time.Duration // postponed: the delay; retry: the least delay; nil: the policy's
	text   string         // the error
}

// handle delivers a worker's event, logs the delivery, and returns the error that settles the event.
func (d *Deliverer) handle(ctx context.Context, w *worker, ev event.Event) error {
	routes, e, err := w.find(ctx, ev)
	if e == nil {
		return err
	}
	r := event.Delivery{ID: ev.ID, Origin: ev.FirstID(), Subject: keys.EncodeText(ev.Key.String()), Attempt: ev.Attempt,
		Time: d.Now().UTC().Truncate(time.Millisecond)}
	o, took := d.deliver(ctx, w, routes, e, ev, &r)
	o.text = e.hide(o.text)
	r.Result, r.Error, r.Duration = o.result, o.text, (took + time.Millisecond - 1).Milliseconds()
	d.log(ctx, ev.Key, r)
	d.OnDelivery(r, took)
	if o.result == event.ResultDead {
		d.Logger.Warn("delivery failed for good: it becomes a dead letter", "key", ev.Key.String(), "attempt",
			ev.Attempt, "host", r.Host, "err", r.Error)
	}
	return o.err(ctx, ev)
}

// err returns the outcome as an error for client.Consume.
func (o outcome) err(ctx context.Context, ev event.Event) error {
	err := errors.New(o.text)
	switch {
	case o.result == event.ResultDelivered:
		return nil
	case o.result == event.ResultPostponed && ctx.Err() != nil:
		return err // gives the event back to JetStream
	case o.result == event.ResultPostponed:
		return client.Postpone(*o.after, err)
	case o.after != nil:
		return client.RetryNoSooner(*o.after, err)
	case o.result == event.ResultDead && !usedUp(ev):
		return client.Dead(err)
	}
	return err
}

// usedUp reports whether the event is its timer's last attempt, so that a failure makes it a dead letter.
func usedUp(ev event.Event) bool { return ev.MaxAttempts > 0 && ev.Attempt >= ev.MaxAttempts }

// deliver makes the call, or postpones the delivery, and fills in the call's fields of r.
func (d *Deliverer) deliver(ctx context.Context, w *worker, routes *routes, e *Endpoint, ev event.Event,
	r *event.Delivery) (o outcome, took time.Duration) {
	to, err := e.target(ev)
	if err != nil {
		return outcome{result: event.ResultDead, text: err.Error()}, 0
	}
	r.Host = to.host
	call, wait := w.admit(e, to.host)
	if wait != nil {
		return postpone(e, ev, *wait, d.Now()), 0
	}
	began := time.Now()
	a := d.call(ctx, w.cut, routes, e, to, ev)
	took = time.Since(began)
	open := call.end(a.host, a.status == 0 && !a.host)
	r.Status = a.status
	return d.conclude(e, ev, to, a, open), took
}

// conclude returns the outcome of an event after a call. open reports whether the circuit was open at the end of the
// call.
func (d *Deliverer) conclude(e *Endpoint, ev event.Event, to target, a answer, open bool) outcome {
	switch {
	case a.verdict == delivered:
		return outcome{result: event.ResultDelivered}
	case a.verdict == hopeless:
		return outcome{result: event.ResultDead, text: a.text}
	case a.verdict == cutShort: // the call was made; the event comes again even if it has expired
		wait := leastWait
		return outcome{result: event.ResultPostponed, after: &wait, text: a.text}
	case a.verdict == returned:
		return postpone(e, ev, held{wait: max(leastWait, a.after), why: a.text}, d.Now())
	case open && a.host: // not the delivery's fault
		wait := held{wait: leastWait, circuit: true}
		if now := d.hosts.openFor(to.host, e); now != nil {
			wait = *now
		}
		wait.wait, wait.why = max(wait.wait, a.after), a.text
		return postpone(e, ev, wait, d.Now())
	case usedUp(ev):
		return outcome{result: event.ResultDead, text: a.text}
	case a.verdict == deferred:
		return outcome{result: event.ResultRetry, after: &a.after, text: a.text}
	}
	return outcome{result: event.ResultRetry, text: a.text}
}

// postpone returns the outcome of a delivery that has to wait. For an open circuit it waits at least a tenth of its
// age, so that old deliveries come back rarely. For any reason, it waits at most until it expires, and is a dead letter
// then.
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

// call calls an endpoint and reads its answer. The end of cut interrupts it.
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
			d.relief.give(routes.close) // idle connections use up ports and files, and this machine has no more
		}
		return explain(err, e.Timeout, ctx.Err() != nil || cut.Err() != nil)
	}
	what := e.read(response, cancel)
	return judge(response, what, time.Now())
}

// hide removes secrets from a text: a host may have sent them back.
func (e *Endpoint) hide(text string) string {
	for _, secret := range e.secrets {
		text = strings.ReplaceAll(text, secret, "[secret]")
	}
	return text
}
