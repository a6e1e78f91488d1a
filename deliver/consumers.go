package deliver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/backoff"
	"github.com/timerd-io/timerd/keys"
)

const (
	// leastLanes is how many calls each consumer may make at a time, however many consumers share Calls.
	leastLanes = 64
	// cutAfter is how long calls get to finish when Run has to end.
	cutAfter = 6 * time.Second
	// forgetEvery is how often idle hosts are forgotten.
	forgetEvery = time.Minute
)

// routes is a configuration with what calls its endpoints.
type routes struct {
	config  *Config
	clients map[*Endpoint]*http.Client
}

// consumer gets the events of a namespace.
type consumer struct {
	namespace keys.Namespace
	lanes     int  // calls at a time
	oneHost   bool // all its calls go to one host
	routes    atomic.Pointer[routes]
	places    places
	fetching  context.Context // ends when no event is to be begun any more
	cut       context.Context // ends when calls are to be cut short
	stop      func()
}

// state is what Run has to tell others.
type state struct {
	mu     sync.Mutex
	faults map[keys.Namespace]error // of consumers that do not work
}

// Reload has Run go on with another configuration. Calls under way end by the old one. Of several in a row the last one
// counts. Call it from one goroutine at a time.
func (d *Deliverer) Reload(config *Config) {
	select {
	case <-d.reloads:
	default:
	}
	d.reloads <- config
}

// Healthy returns nil as long as every namespace is consumed.
func (d *Deliverer) Healthy() error {
	d.state.mu.Lock()
	defer d.state.mu.Unlock()
	var faults []error
	for ns, err := range d.state.faults {
		faults = append(faults, fmt.Errorf("%s: %w", ns, err))
	}
	return errors.Join(faults...)
}

func (s *state) set(ns keys.Namespace, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.faults == nil {
		s.faults = map[keys.Namespace]error{}
	}
	if delete(s.faults, ns); err != nil {
		s.faults[ns] = err
	}
}

// Run delivers until ctx ends. Calls that are under way then get some seconds to finish; what is cut short is delivered
// again, by another process or later.
func (d *Deliverer) Run(ctx context.Context) error {
	cut, cutNow := context.WithCancel(context.WithoutCancel(ctx))
	defer cutNow()
	var running sync.WaitGroup
	consumers := map[keys.Namespace]*consumer{}
	var now *routes
	forget := time.NewTicker(forgetEvery)
	defer forget.Stop()
	for {
		select {
		case config := <-d.reloads:
			before := now
			now = d.route(config)
			d.apply(ctx, cut, now, consumers, &running)
			if before != nil {
				before.close()
			}
		case <-forget.C:
			d.hosts.forget()
		case <-ctx.Done():
			hurry := time.AfterFunc(cutAfter, cutNow)
			running.Wait()
			hurry.Stop()
			if now != nil {
				now.close()
			}
			return nil
		}
	}
}

// route makes what calls the endpoints of a configuration.
func (d *Deliverer) route(config *Config) *routes {
	r := &routes{config: config, clients: map[*Endpoint]*http.Client{}}
	for _, e := range config.Endpoints {
		r.clients[e] = newClient(newTransport(e, len(config.Endpoints), d.Proxy))
	}
	return r
}

// close closes connections that are not in use.
func (r *routes) close() {
	for _, c := range r.clients {
		c.CloseIdleConnections()
	}
}

// apply starts and stops consumers, so that there are those of a configuration.
func (d *Deliverer) apply(ctx, cut context.Context, r *routes, consumers map[keys.Namespace]*consumer, running *sync.WaitGroup) {
	wanted := r.config.Consumers()
	for ns, c := range consumers {
		if !slices.Contains(wanted, ns) {
			c.stop()
			delete(consumers, ns)
		}
	}
	for _, ns := range wanted {
		lanes, oneHost := d.lanes(r.config, ns)
		if c := consumers[ns]; c != nil && c.lanes == lanes && c.oneHost == oneHost {
			c.routes.Store(r)
			continue
		} else if c != nil {
			c.stop()
		}
		c := newConsumer(ctx, cut, ns, lanes, oneHost)
		c.routes.Store(r)
		consumers[ns] = c
		running.Go(func() { d.consume(c) })
	}
}

func newConsumer(ctx, cut context.Context, ns keys.Namespace, lanes int, oneHost bool) *consumer {
	c := &consumer{namespace: ns, lanes: lanes, oneHost: oneHost, cut: cut, places: places{most: lanes}}
	if oneHost {
		c.places.most = math.MaxInt // slow calls take no place of others
	}
	c.fetching, c.stop = context.WithCancel(ctx)
	return c
}

// lanes returns how many calls the consumer of a namespace may make at a time, and whether all go to one host. Then
// there are no more than that may have, and what waits does so in JetStream.
func (d *Deliverer) lanes(config *Config, ns keys.Namespace) (lanes int, oneHost bool) {
	share := max(d.Calls/len(config.Consumers()), min(leastLanes, d.Calls))
	if only := config.only(ns); only != nil {
		return min(only.Concurrency, share), true
	}
	return share, false
}

// consume consumes until c.fetching ends, and tries again whatever happens.
func (d *Deliverer) consume(c *consumer) {
	defer d.state.set(c.namespace, nil)
	pace := backoff.Backoff{Policy: backoff.Policy{First: time.Second, Longest: 30 * time.Second}, Logger: d.Logger}
	for {
		from := client.NewConsumer(d.js)
		from.Stream, from.Prefix = d.Names.FiredStream(), d.Names.SubjectPrefix()
		from.Durable = c.namespace.Durable(keys.DeliverDurable)
		from.Concurrency = c.lanes
		from.MaxAckPending = -1 // no event is fetched before there is a place for it, in any process
		from.StopTimeout = maxTimeout + time.Second
		from.Logger = slog.New(quietHandler{d.Logger.Handler()})
		err := from.Consume(c.fetching, c.namespace.String(), func(ctx context.Context, ev event.Event) error { return d.handle(ctx, c, ev) })
		if c.fetching.Err() != nil {
			if err != nil {
				d.Logger.Warn("deliveries were left behind, they are repeated", "namespace", c.namespace.String(), "err", err)
			}
			return
		}
		d.state.set(c.namespace, err)
		if !backoff.Sleep(c.fetching, pace.Fail("deliveries stand still, trying again", err, "namespace", c.namespace.String())) {
			return
		}
		d.state.set(c.namespace, nil)
	}
}

// quietHandler leaves out what the client says of single events: the log of deliveries has that, and there may be
// thousands a second while hosts are dead.
type quietHandler struct{ slog.Handler }

// WithAttrs recognises a logger of one event by its attempt.
func (q quietHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	next := q.Handler.WithAttrs(attrs)
	if slices.ContainsFunc(attrs, func(a slog.Attr) bool { return a.Key == "attempt" }) {
		return errorsOnly{next}
	}
	return quietHandler{next}
}

// errorsOnly passes on errors alone.
type errorsOnly struct{ slog.Handler }

func (errorsOnly) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelError }
