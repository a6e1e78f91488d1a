package load

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/bench/internal/peer"
	"github.com/timerd-io/timerd/bench/internal/result"
	"github.com/timerd-io/timerd/bench/internal/rig"
)

// The workloads of Durability.
const (
	DurabilityRate  = "durability: rate"
	DurabilitySpike = "durability: spike"
	DurabilityPlain = "durability: plain publisher"
)

// ValuePublished is the number of messages a second that a plain publisher stores, one by one.
const ValuePublished = "publishedPerS"

// The settings of the plain publisher.
const (
	plainOutstanding = 4096 // unacknowledged messages, timerd's own limit
	plainBytes       = 500
	plainTime        = 3 * time.Second
)

// DurableAmong returns the systems for [Bench.Durability], of some.
func DurableAmong(specs []peer.Spec) []peer.Spec {
	return among(specs, "timerd", "timerd-sync", "timerd-slow", "timerd-r3", "timerd-always", "timerd-always-sync",
		"timerd-always-r3")
}

// Durability measures timerd on servers that sync to disk in different ways before they answer: Redis every second or
// always; NATS now and then, always, always on a slow disk, or on three servers.
func (b *Bench) Durability(ctx context.Context, specs []peer.Spec, round int,
	save func(result.Measurement) error) error {
	for _, s := range specs {
		if err := b.durability(ctx, s, round, save); err != nil {
			return fmt.Errorf("%s: %w", s.Name, err)
		}
	}
	return nil
}

// among returns the named ones of some systems, in the order of their names.
func among(specs []peer.Spec, names ...string) (some []peer.Spec) {
	for _, name := range names {
		i := slices.IndexFunc(specs, func(s peer.Spec) bool { return s.Name == name })
		if i >= 0 {
			some = append(some, specs[i])
		}
	}
	return some
}

func (b *Bench) durability(ctx context.Context, spec peer.Spec, round int,
	save func(result.Measurement) error) (err error) {
	system := spec.New(spec)
	x, err := b.start(ctx, spec, system)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.Close()) }()
	timerd, ok := system.(*peer.Timerd)
	if !ok {
		return fmt.Errorf("%s is no timerd", spec.Name)
	}
	if !timerd.RedisAlways {
		m := x.measurement(DurabilityPlain, round)
		if m.Values, m.Usage, err = x.publishPlainly(ctx, timerd.NATS, max(timerd.Replicas, 1)); err != nil {
			return err
		}
		b.logf("%s: a plain publisher gets %.0f messages/s stored, one by one; NATS %.0f µs each", spec.Name,
			m.Values[ValuePublished],
			m.Usage[rig.RoleNATS].CPU*1e6/m.Values[ValuePublished]/plainTime.Seconds())
		if err := save(m); err != nil {
			return err
		}
	}
	return b.fire(ctx, x, DurabilityRate, DurabilitySpike, b.Scale.Spike.Timers, round, save)
}

// publishPlainly publishes messages one by one to a new stream, for a while.
func (x *running) publishPlainly(ctx context.Context, nc *nats.Conn,
	replicas int) (map[string]float64, map[string]result.Usage, error) {
	const name = "PLAIN"
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(plainOutstanding))
	if err != nil {
		return nil, nil, err
	}
	if _, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: name, Subjects: []string{"plain"},
		Replicas: replicas}); err != nil {
		return nil, nil, err
	}
	before, err := x.Usage()
	if err != nil {
		return nil, nil, err
	}
	payload, began, n := bytes.Repeat([]byte("x"), plainBytes), time.Now(), 0
	for time.Since(began) < plainTime {
		if _, err := js.PublishAsync("plain", payload, jetstream.WithMsgID(fmt.Sprint(n)),
			jetstream.WithStallWait(time.Minute)); err != nil {
			return nil, nil, err
		}
		n++
	}
	select {
	case <-js.PublishAsyncComplete():
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
	took := time.Since(began)
	after, err := x.Usage()
	if err != nil {
		return nil, nil, err
	}
	return map[string]float64{ValuePublished: float64(n) / took.Seconds()}, usage(before, after, nil),
		js.DeleteStream(ctx, name)
}
