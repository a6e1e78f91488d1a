package service

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/deliver"
	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/keys"
)

const (
	// delivererLook is the interval of looks for something new to report.
	delivererLook = time.Second
	// namespacesSaid limits the namespaces in a report of postponed deliveries to a host.
	namespacesSaid = 5
)

// deliverer reports in NATS what keeps this process of timerd deliver from delivering, for timerd status. Its methods
// may be called concurrently.
type deliverer struct {
	js       jetstream.JetStream
	streams  streams.Config
	instance string
	outdated func() *deliver.Outdated
	now      func() time.Time // the clock that circuits use
	log      *slog.Logger

	mu      sync.Mutex
	failing map[string]*streams.Circuit // by host
}

// noteCircuit notes that a circuit opened for a time, or closed.
func (d *deliverer) noteCircuit(host string, length time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if length == 0 {
		delete(d.failing, host)
		return
	}
	now := d.now().UTC()
	if d.failing[host] == nil {
		d.failing[host] = &streams.Circuit{Host: host, Since: now}
	}
	d.failing[host].Next = now.Add(length)
}

// noteDelivery counts a postponed delivery, or keeps the error of the last call. took is 0 without a call.
func (d *deliverer) noteDelivery(r event.Delivery, took time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := d.failing[r.Host]
	if c == nil {
		return
	}
	if took > 0 && r.Error != "" {
		c.Error = r.Error
	}
	if r.Result != event.ResultPostponed {
		return
	}
	c.Postponed++
	key, err := keys.Parse(r.Subject)
	if err != nil || len(c.Namespaces) >= namespacesSaid {
		return
	}
	namespace := keys.Namespace{App: key.App, Module: key.Module, Type: key.Type}.String()
	if at, there := slices.BinarySearch(c.Namespaces, namespace); !there {
		c.Namespaces = slices.Insert(c.Namespaces, at, namespace)
	}
}

// report returns the present report.
func (d *deliverer) report() streams.Deliverer {
	said := streams.Deliverer{Instance: d.instance}
	if o := d.outdated(); o != nil {
		said.Outdated = &streams.Outdated{
			Group: o.Group, File: o.Rules.String(), Version: o.Rules.Version, By: o.By, Changed: o.Rules.Changed.UTC(),
			Touch: o.Touch(),
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range d.failing {
		circuit := *c
		circuit.Namespaces = slices.Clone(c.Namespaces)
		said.Circuits = append(said.Circuits, circuit)
	}
	return said
}

// run stores the report when something begins or ends, and from time to time while there is something. When ctx ends,
// it stores that there is nothing.
func (d *deliverer) run(ctx context.Context) {
	look := time.NewTicker(delivererLook)
	defer look.Stop()
	var last time.Time
	circuits, outdated := 0, false
	for ended := false; !ended; {
		now := streams.Deliverer{Instance: d.instance}
		select {
		case <-ctx.Done():
			ended = true
		case <-look.C:
			now = d.report()
		}
		same := len(now.Circuits) == circuits && (now.Outdated != nil) == outdated
		if same && (circuits == 0 && !outdated || time.Since(last) < streams.DelivererPause) {
			continue
		}
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		if err := streams.StoreDeliverer(within, d.js, d.streams, now); err != nil {
			d.log.Debug("cannot report what keeps this process from delivering", "err", err)
		}
		cancel()
		circuits, outdated, last = len(now.Circuits), now.Outdated != nil, time.Now()
	}
}
