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
	// delivererLook is how often it is looked whether there is something new to say.
	delivererLook = time.Second
	// namespacesSaid is of how many namespaces it is said that deliveries to a host were put off.
	namespacesSaid = 5
)

// deliverer says in NATS what keeps this process of timerd deliver from delivering, for timerd status. Its methods may be called
// concurrently.
type deliverer struct {
	js       jetstream.JetStream
	streams  streams.Config
	instance string
	outdated func() *deliver.Outdated
	log      *slog.Logger

	mu      sync.Mutex
	failing map[string]*streams.Circuit // by host
}

// noteCircuit takes that a circuit has opened for so long, or closed.
func (d *deliverer) noteCircuit(host string, length time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if length == 0 {
		delete(d.failing, host)
	} else if d.failing[host] == nil {
		d.failing[host] = &streams.Circuit{Host: host, Since: time.Now().UTC()}
	}
}

// noteDelivery counts what was put off, and keeps the error of the last call, which took so long: no time, if there was none.
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

// says returns what there is to say.
func (d *deliverer) says() streams.Deliverer {
	said := streams.Deliverer{Instance: d.instance}
	if o := d.outdated(); o != nil {
		said.Outdated = &streams.Outdated{
			Group: o.Group, File: o.Rules.String(), Version: o.Rules.Version, By: o.By, Changed: o.Rules.Changed.UTC(), Touch: o.Touch(),
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

// run says it when something begins or ends, from time to time while there is something, and at the end that there is nothing any
// more: when ctx ends.
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
			now = d.says()
		}
		same := len(now.Circuits) == circuits && (now.Outdated != nil) == outdated
		if same && (circuits == 0 && !outdated || time.Since(last) < streams.DelivererPause) {
			continue
		}
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		if err := streams.SayDeliverer(within, d.js, d.streams, now); err != nil {
			d.log.Debug("cannot say what keeps this process from delivering", "err", err)
		}
		cancel()
		circuits, outdated, last = len(now.Circuits), now.Outdated != nil, time.Now()
	}
}
