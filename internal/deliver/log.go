package deliver

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/backoff"
	"github.com/timerd-io/timerd/keys"
)

const (
	// logPatience bounds the tries of writing a record while NATS is connected: a broken log must not stop deliveries
	// for good. Once it is used up, each record gets a single try, until one is written, because a try holds a place
	// for a call. While NATS is away nothing can go on anyway.
	logPatience = 30 * time.Second
	// logAtLast bounds the tries while timerd deliver stops.
	logAtLast = 500 * time.Millisecond
	logTry    = 10 * time.Second // a shorter one would add to the load of a slow NATS
	logPause  = time.Second      // between two tries at most
)

// patience is the time for writing a record. It is not safe for concurrent use.
type patience struct{ whole, left time.Duration }

func newPatience(whole time.Duration) *patience { return &patience{whole: whole, left: whole} }

// failed notes a failed try, with the pause before it, and reports whether to try again. Time without a connection to
// NATS does not count, nor time in which the process stood still: a try counts for no longer than its limit.
func (p *patience) failed(took time.Duration, away bool) (again bool) {
	if away {
		p.left = p.whole
		return true
	}
	p.left -= min(took, logTry+logPause)
	return p.left > 0
}

// log writes a record and waits until it is stored. The event is settled only after that: if a process dies before, the
// call is not logged, but the event is delivered again.
func (d *Deliverer) log(ctx context.Context, k keys.Key, r event.Delivery) {
	data, err := json.Marshal(r)
	if err != nil {
		return // cannot happen: r has texts, numbers and a time
	}
	message := &nats.Msg{
		Subject: d.Names.Subject(k, keys.Delivery),
		Header:  nats.Header{event.ContentTypeHeader: {event.DataJSON}, event.MsgIDHeader: {rand.Text()}},
		Data:    data,
	}
	whole, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(logAtLast, cancel) })()
	conn := d.js.Conn()
	patience, began := newPatience(time.Duration(d.logPatience.Load())), time.Now()
	for failures := 1; ; failures++ {
		reconnects := conn.Stats().Reconnects
		err := d.store(whole, message)
		if err == nil {
			d.logFails.Store(false)
			return
		}
		// in this case the record itself may be lost
		away := !conn.IsConnected() || conn.Stats().Reconnects != reconnects
		again := patience.failed(time.Since(began), away) && (away || !d.logFails.Load()) && !conn.IsClosed()
		began = time.Now()
		if !again || !backoff.Sleep(whole, backoff.Policy{First: 50 * time.Millisecond,
			Longest: logPause}.Delay(failures)) {
			d.logFails.Store(true)
			d.OnUnlogged()
			d.Logger.Error("delivery was not logged", "id", r.ID, "result", string(r.Result), "err", err)
			return
		}
	}
}

// store tries to store a record once. A new connection ends the try: the record or its acknowledgement may have gone
// with the old one, and the stream drops a second copy by its id.
func (d *Deliverer) store(ctx context.Context, record *nats.Msg) error {
	try, end := context.WithTimeout(ctx, d.logTry)
	defer end()
	conn := d.js.Conn()
	connected := conn.StatusChanged(nats.CONNECTED)
	defer conn.RemoveStatusListener(connected)
	go func() {
		for range connected {
			end()
		}
	}()
	_, err := d.js.PublishMsg(try, record)
	if errors.Is(err, jetstream.ErrNoStreamResponse) {
		err = errors.Join(err, d.EnsureLog(try))
	}
	return err
}
