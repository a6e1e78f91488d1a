package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/backoff"
	"github.com/timerd-io/timerd/internal/config"
	"github.com/timerd-io/timerd/internal/connect"
	"github.com/timerd-io/timerd/internal/deliver"
	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/status"
	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/keys"
)

// Delivery runs timerd deliver once.
type Delivery struct {
	Config  config.Config // of the sections NATS and Deliver
	Version string        // for the log
	Calls   int           // limit of simultaneous calls
	// Clock reads the clock of a virtual installation; nil for no such installation, and then Run refuses one.
	Clock func() time.Time
	// Load reads the file of endpoints. Its error names all faults.
	Load func() (*deliver.Config, error)
	// Reload asks for another call of Load.
	Reload <-chan os.Signal
	Logger *slog.Logger
}

// Run delivers until ctx ends. A taken HTTP address and a bad file are errors before anything else is tried. Its error
// is nil after an orderly stop.
func (s Delivery) Run(ctx context.Context) error {
	began := time.Now()
	endpoints, err := s.Load()
	if err != nil {
		return err
	}
	l, err := listen(ctx, "TIMERD_HTTP_ADDR", s.Config.Service.HTTPAddr)
	if err != nil {
		return err
	}
	if l != nil {
		defer func() { _ = l.Close() }() // a running server has closed it
	}
	js, err := connect.Connector{Logger: s.Logger, Patience: startPatience}.JetStream(ctx, s.Config.NATS.FromOutside())
	if err != nil {
		return err
	}
	conns := &connections{js: js}
	err = s.ensureLog(ctx, js)
	if err == nil && s.Clock == nil {
		err = s.refuseVirtual(ctx, js)
	}
	if err != nil {
		return errors.Join(err, conns.close())
	}
	d := deliver.New(js, endpoints)
	d.Names = s.Config.Streams().Names
	d.Calls = s.Calls
	d.Logger = s.Logger
	if s.Clock != nil {
		d.Now = s.Clock
	}
	d.EnsureLog = func(ctx context.Context) error { return streams.EnsureDelivery(ctx, js, s.Config.Streams()) }
	hindered := &deliverer{
		js: js, streams: s.Config.Streams(), instance: newInstance(hostname()), outdated: d.Outdated, now: d.Now,
		log: s.Logger, failing: map[string]*streams.Circuit{},
	}
	d.OnCircuit = hindered.noteCircuit
	metrics := newRegistry()
	observeDeliveries(metrics, d, hindered)

	ready := s.newReadiness(js, d)
	observeReadiness(metrics, ready)
	s.logStart(l, endpoints, hindered.instance, began)
	err = runAll(ctx, s.Logger, stopWithin,
		step{{"reloads", func(ctx context.Context) error { s.reload(ctx, d, endpoints); return nil }}},
		step{{"deliveries", d.Run}},
		step{
			{"HTTP server", func(ctx context.Context) error {
				return serveHTTP(ctx, l, newHTTPHandler(ready, metrics), s.Logger)
			}},
			{"readiness checks", withoutError(ready.run)},
			{"what hinders", withoutError(hindered.run)},
		},
		step{{"connections", conns.run}},
	)
	s.Logger.Info("timerd deliver has stopped")
	return err
}

// refuseVirtual returns an error if the stream of firings belongs to a virtual installation.
func (s Delivery) refuseVirtual(ctx context.Context, js jetstream.JetStream) error {
	stream, err := js.Stream(ctx, s.Config.Streams().FiredStream())
	if err == nil && keys.IsVirtual(stream.CachedInfo().Config.Metadata[keys.InstallationMetadata]) {
		return errVirtual
	}
	return nil // /readyz reports a missing stream
}

// newReadiness returns the checks of a Deliverer's /readyz.
func (s Delivery) newReadiness(js jetstream.JetStream, d *deliver.Deliverer) *readiness {
	ready := &readiness{log: s.Logger, clients: s.Config.Clients()}
	has := func(stream, remedy string) func(context.Context) error {
		return func(ctx context.Context) error {
			if err := connected(js, natsAway(s.Config.NATS)); err != nil {
				return err
			}
			_, err := js.Stream(ctx, stream)
			if errors.Is(err, jetstream.ErrStreamNotFound) {
				return &diag.Fault{What: "there is no stream " + stream, Remedy: remedy, Err: err}
			}
			return streams.Explained(ctx, js, err)
		}
	}
	ready.add(status.ReadyJetStream, has(d.Names.FiredStream(), "start timerd serve, which makes it"))
	ready.add("log of deliveries", has(d.Names.DeliveryStream(),
		"the next delivery makes it, as does a restart of timerd deliver"), status.ReadyJetStream)
	ready.add("endpoints", func(context.Context) error { return d.Healthy() }, status.ReadyJetStream)
	return ready
}

// ensureLog creates the stream of the log. It waits for a timerd that is creating the other streams.
func (s Delivery) ensureLog(ctx context.Context, js jetstream.JetStream) error {
	until := time.Now().Add(startPatience)
	pace := backoff.Backoff{Policy: backoff.Policy{First: 250 * time.Millisecond, Longest: 4 * time.Second},
		Logger: s.Logger}
	for {
		err := streams.EnsureDelivery(ctx, js, s.Config.Streams())
		_, final := errors.AsType[*streams.Fault](err)
		if err == nil || final || time.Now().After(until) {
			return err
		}
		if !backoff.Sleep(ctx, pace.Fail("streams are missing, trying again", err)) {
			return context.Cause(ctx)
		}
	}
}

// logStart logs the start with the main settings.
func (s Delivery) logStart(l net.Listener, endpoints *deliver.Config, instance string, began time.Time) {
	s.Logger.Info("timerd deliver is running", "version", s.Version, "instance", instance, "nats", s.Config.NATS.Shown,
		"endpoints", len(endpoints.Endpoints),
		"group", endpoints.Group, "file", endpoints.File.String(), "http", shownAddr("%s", l), "after",
		time.Since(began).Round(time.Millisecond))
	for _, scheme := range []string{"http", "https"} {
		if proxy := proxyOf(scheme, http.ProxyFromEnvironment); proxy != "" {
			s.Logger.Info("calls go through a proxy: the proxy resolves names, and must refuse private addresses",
				"scheme", scheme, "proxy", proxy)
		}
	}
	s.warn(endpoints)
}

// proxyOf returns the proxy for calls of a scheme, without its password; "" for none.
func proxyOf(scheme string, proxy func(*http.Request) (*url.URL, error)) string {
	u, err := proxy(&http.Request{URL: &url.URL{Scheme: scheme, Host: "anyhost.invalid"}})
	switch {
	case err != nil:
		return "one with a malformed URL"
	case u == nil:
		return ""
	}
	return u.Redacted()
}

// warn warns about allowed but questionable settings.
func (s Delivery) warn(endpoints *deliver.Config) {
	for _, e := range endpoints.Endpoints {
		if !e.Signs() {
			s.Logger.Warn("endpoint without secrets: its receiver cannot verify calls", "match", e.Match.String())
		}
	}
}

// reload reads the file again at each signal. A file with faults changes nothing.
func (s Delivery) reload(ctx context.Context, d *deliver.Deliverer, now *deliver.Config) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.Reload:
		}
		next, err := s.Load()
		if err != nil {
			s.Logger.Error("the file of endpoints has faults; keeping the old endpoints", "err", err)
			continue
		}
		added, removed := now.Differences(next)
		d.Reload(next)
		now = next
		s.Logger.Info("endpoints reloaded", "endpoints", len(next.Endpoints), "added", fmt.Sprint(added), "removed",
			fmt.Sprint(removed))
		s.warn(next)
	}
}

// observeDeliveries registers the metrics of deliveries.
func observeDeliveries(r registry, d *deliver.Deliverer, hindered *deliverer) {
	count := counting(r.counters("deliveries_total", "Deliveries to HTTP endpoints, by result.", "result"),
		event.Results()...)
	seconds := r.histogram("delivery_seconds", "How long calls of HTTP endpoints took.",
		[]float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 15, 30, 60})
	r.asked("circuit_open", "Hosts with an open circuit in this process.", nil,
		func() float64 { return float64(d.OpenCircuits()) })
	d.OnDelivery = func(r event.Delivery, took time.Duration) {
		count(r.Result)
		hindered.noteDelivery(r, took)
		if took > 0 {
			seconds.Observe(took.Seconds())
		}
	}
	d.OnUnlogged = r.counter("deliveries_unlogged_total", "Deliveries that could not be written to their log.").Inc
}
