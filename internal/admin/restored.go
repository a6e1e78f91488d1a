package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/backoff"
	"github.com/timerd-io/timerd/internal/history"
	"github.com/timerd-io/timerd/internal/retry"
	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

const (
	// restoredEvery is the interval at which a timerd asks whether timers of a restored Redis wait, restoredLongest the
	// longest one after failures.
	restoredEvery   = time.Second
	restoredLongest = 15 * time.Second
	// requestsWithin bounds the wait for requests for retries that came before a comparison, requestsLook is the
	// interval of looks at them.
	requestsWithin = 30 * time.Second
	requestsLook   = 100 * time.Millisecond
)

// Restored is each timerd's work for a restored Redis: it compares the timers that wait there with the streams, and
// frees those without an event.
type Restored struct {
	Schedule  *schedule.Schedule
	JetStream jetstream.JetStream
	Streams   streams.Config
	Instance  string // this timerd among all
	// Duplicates returns the duplicate window of the stream of firings, or the stream's age if that is shorter, and
	// whether they are known.
	Duplicates func() (window time.Duration, known bool)
	Logger     *slog.Logger
}

// Run compares whenever timers wait, until ctx ends. One timerd does so at a time, and for one server after the other:
// of each it reads the streams since the last heartbeat there.
func (r Restored) Run(ctx context.Context) {
	turn := turn{r.Schedule, keys.Single.Reconciling(), r.Instance}
	told := map[string]schedule.Wait{}
	pace := backoff.Backoff{Policy: backoff.Policy{First: restoredEvery, Longest: restoredLongest},
		Logger: r.Logger}
	for pause := time.Duration(0); backoff.Sleep(ctx, pause); {
		pause = restoredEvery
		if window, known := r.Duplicates(); known {
			r.Schedule.SetDuplicates(window)
		}
		waits, _ := r.Schedule.WaitsLately(ctx) // of the servers that answer
		if len(waits) == 0 || !r.JetStream.Conn().IsConnected() {
			continue // other checks report an outage
		}
		if taken, err := turn.take(ctx); err != nil || !taken {
			continue
		}
		waits, _ = r.Schedule.Waits(ctx) // another timerd may have just compared them
		var failed error
		for _, w := range waits {
			if !told[w.Server].Same(w) {
				r.Logger.Warn("Redis may have older data: timers that were due wait to be compared with the streams",
					"redis", w.Server, "timers", w.Timers, "due_until", w.Until.Time(), "last_seen", w.Last.Time())
				told[w.Server] = w
			}
			if err := r.compare(ctx, turn, w); err != nil {
				failed = cmp.Or(failed, err)
			}
		}
		turn.leave(ctx, r.Logger)
		if failed == nil {
			pace.Succeed()
		} else if ctx.Err() == nil {
			pause = pace.Fail("timers of a restored Redis wait: they cannot be compared with the streams", failed)
		}
	}
}

// compare compares the timers that wait on one server.
func (r Restored) compare(ctx context.Context, turn turn, w schedule.Wait) error {
	all := Reconciliation{Schedule: r.Schedule, JetStream: r.JetStream, Streams: r.Streams, alone: true,
		waits: []schedule.Wait{w}}
	err := all.Find(ctx)
	if err == nil {
		err = all.Check(ctx)
	}
	if err == nil {
		err = r.awaitRequests(ctx)
	}
	if err != nil {
		return err
	}
	lost := false
	renewed := time.Now()
	within, cancel := context.WithCancel(ctx)
	defer cancel()
	done, err := all.Run(within, false, func(int64) {
		if time.Since(renewed) < turnFor/3 {
			return
		}
		if taken, err := turn.take(within); err == nil && !taken {
			lost = true // another timerd has taken over
			cancel()
		}
		renewed = time.Now()
	})
	if lost && errors.Is(err, context.Canceled) {
		return nil
	} else if err != nil {
		return err
	}
	r.Logger.Info("compared with the streams; the timers that waited are free", "redis", w.Server, "events",
		done.Events, "ended", done.Ended, "webhooks_set_again", done.Retries)
	r.warn("may have been moved since the backup, and stays", done.Doubtful)
	r.warn("has a webhook delivery that could not be set again", done.Unset)
	if done.NoDeliveries != nil {
		r.Logger.Warn("no retries of webhooks were looked for", "err", done.NoDeliveries)
	}
	entry := event.Entry{Kind: event.EntryReconcile, Time: time.Now(), Via: event.ViaTimerd, By: r.Instance,
		Count: done.Ended + done.Retries, Detail: "since " + all.Since.UTC().Format(time.RFC3339)}
	if err := streams.WriteHistory(ctx, r.JetStream, r.Streams, entry); err != nil {
		r.Logger.Debug("cannot write to the history", "err", err)
	}
	return nil
}

// mostNamed limits the keys that the log names.
const mostNamed = 10

// warn logs some keys.
func (r Restored) warn(what string, some []keys.Key) {
	for _, key := range some[:min(len(some), mostNamed)] {
		r.Logger.Warn("a key of the restored Redis "+what, "key", key.String()) //nolint:sloglint // callers' constants
	}
	if more := len(some) - mostNamed; more > 0 {
		r.Logger.Warn("more such keys", "keys", more)
	}
}

// awaitRequests waits until the requests for retries are carried out that NATS has by now: the log of deliveries has
// them already, and a comparison would set the webhooks again without the delays that they ask for.
func (r Restored) awaitRequests(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, requestsWithin,
		errors.New("requests for retries wait to be carried out"))
	defer cancel()
	requests, err := history.Open(ctx, r.JetStream, r.Streams.RetryStream())
	if err != nil {
		return err
	}
	last := requests.CachedInfo().State.LastSeq
	for {
		consumer, err := requests.Consumer(ctx, retry.Durable)
		if err != nil {
			return fmt.Errorf("ask whether requests for retries wait: %w", err)
		}
		is := consumer.CachedInfo()
		if is.AckFloor.Stream >= last || is.NumPending == 0 && is.NumAckPending == 0 {
			return nil
		}
		if !backoff.Sleep(ctx, requestsLook) {
			return context.Cause(ctx)
		}
	}
}
