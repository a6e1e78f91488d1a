package peer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/bench/internal/firing"
	"github.com/timerd-io/timerd/bench/internal/rig"
)

const workerNak = "nak"

// Names of the NATS systems.
const (
	natsStream     = "BENCH"
	natsFired      = "bench.fired"
	natsSchedules  = "bench.schedule."
	headerSchedule = "Nats-Schedule"
	headerTarget   = "Nats-Schedule-Target"
	headerDue      = "Due"
)

// syncAlways is a line of a nats-server's configuration: sync each message to disk before its acknowledgement.
const syncAlways = "sync_interval: always"

// publishPatience is the longest time for which publishing may stand still with a full window of unacknowledged
// messages.
const publishPatience = time.Minute

// natsSystem is NATS alone. It uses NATS's message schedules, or a consumer that gives each message back with a delay
// until the message is due.
type natsSystem struct {
	schedules bool
	sync      bool // each message to disk before it is acknowledged
	js        jetstream.JetStream
	published uint64
}

func natsSpecs() []Spec {
	spec := func(name, title, settings string, schedules, sync bool) Spec {
		return Spec{
			Name: name, Title: title, Settings: settings, Preload: true, ArmRate: 20_000, Missing: available,
			Variant: sync,
			New:     func(Spec) System { return &natsSystem{schedules: schedules, sync: sync} },
		}
	}
	return []Spec{
		spec("nats-schedule", "NATS `Nats-Schedule`", "file storage; Nats-Schedule: @at …, a subject for each timer",
			true, false),
		spec("nats-schedule-sync", "NATS `Nats-Schedule`, sync always", "as nats-schedule; sync_interval: always", true,
			true),
		spec("nats-nak", "JetStream NakWithDelay", "file storage; MaxAckPending unlimited; no timer can be cancelled",
			false, false),
	}
}

func (s *natsSystem) Start(ctx context.Context, r *rig.Rig, fired func(firing.Firing)) error {
	var store []string
	if s.sync {
		store = []string{syncAlways}
	}
	nc, err := r.NATS(ctx, store...)
	if err != nil {
		return err
	}
	if s.js, err = jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(armBatch*4)); err != nil {
		return err
	}
	if _, err := s.js.CreateStream(ctx, jetstream.StreamConfig{
		Name: natsStream, Subjects: []string{natsFired, natsSchedules + ">"}, Storage: jetstream.FileStorage,
		AllowMsgSchedules: s.schedules,
	}); err != nil {
		return err
	}
	kind := workerNak
	if s.schedules {
		kind = workerStream
	}
	return startWorker(ctx, r, rig.RoleConsumer, fired, kind, nc.ConnectedUrl(), natsStream, natsFired)
}

func (s *natsSystem) Arm(ctx context.Context, timers []firing.Timer) error {
	acks := make([]jetstream.PubAckFuture, 0, len(timers))
	for _, t := range timers {
		msg := nats.NewMsg(natsFired)
		msg.Data = t.Payload()
		if s.schedules {
			msg.Subject = natsSchedules + t.Key()
			msg.Header.Set(headerSchedule, "@at "+t.Due.UTC().Format(time.RFC3339Nano))
			msg.Header.Set(headerTarget, natsFired)
		} else {
			msg.Header.Set(headerDue, fmt.Sprint(t.Due.UnixMilli()))
		}
		ack, err := s.js.PublishMsgAsync(msg, jetstream.WithStallWait(publishPatience))
		if err != nil {
			return err
		}
		acks = append(acks, ack)
	}
	for _, ack := range acks {
		select {
		case <-ack.Ok():
		case err := <-ack.Err():
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	s.published += uint64(len(timers))
	if s.schedules {
		return nil
	}
	return s.awaitTaken(ctx)
}

// awaitTaken waits until the consumer has received every message once, and so has given it back.
func (s *natsSystem) awaitTaken(ctx context.Context) error {
	return rig.Until(ctx, time.Minute, func(ctx context.Context) error {
		consumer, err := s.js.Consumer(ctx, natsStream, consumerName)
		if err != nil {
			return err
		}
		if got := consumer.CachedInfo().Delivered.Stream; got < s.published {
			return fmt.Errorf("the consumer has seen %d of %d messages", got, s.published)
		}
		return nil
	})
}

// nakWorker gives each message back until the message is due. Its arguments are the NATS URL, the stream and the
// subject.
func nakWorker(ctx context.Context, args []string, report *firing.Reporter) error {
	cfg := jetstream.ConsumerConfig{MaxAckPending: -1, AckWait: time.Hour, MaxDeliver: -1}
	return consume(ctx, args, report, cfg, func(msg jetstream.Msg, received time.Time,
		meta *jetstream.MsgMetadata) error {
		if meta.NumDelivered == 1 {
			var ms int64
			if _, err := fmt.Sscan(msg.Headers().Get(headerDue), &ms); err != nil {
				return errors.Join(errors.New("a message without a due time"), err)
			}
			if wait := delay(time.UnixMilli(ms)); wait > 0 {
				return msg.NakWithDelay(wait)
			}
		}
		n, err := firing.OfPayload(msg.Data())
		if err != nil {
			return err
		}
		if err := report.Fired(firing.Firing{N: n, Received: received}); err != nil {
			return err
		}
		return msg.Ack()
	})
}
