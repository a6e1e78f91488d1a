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
	// logPatience is how long writing a record is tried while NATS is there: a log that does not work may not stop
	// deliveries for good. Until the next one is written, each is tried once then, since it holds the place of a call
	// meanwhile. While NATS is away nothing can go on anyway.
	logPatience = 30 * time.Second
	// logAtLast is how long it is tried once timerd deliver stops.
	logAtLast = 500 * time.Millisecond
	logTry    = 10 * time.Second // a shorter one would add to the load of a NATS that is slow
	logPause  = time.Second      // between two tries at most
)

// patience is for how long a record is tried to be written. It is not safe for concurrent use.
type patience struct{ whole, left time.Duration }

func newPatience(whole time.Duration) *patience { return &patience{whole: whole, left: whole} }

// failed takes in a try that failed, with the pause before it, and tells whether there is to be another. While NATS is away
// patience does not run out. Nor does it while the process stands still: a try counts for no longer than one can take.
func (p *patience) failed(took time.Duration, away bool) (again bool) {
	if away {
		p.left = p.whole
		return true
	}
	p.left -= min(took, logTry+logPause)
	return p.left > 0
}

// log writes a record and waits until it is stored. The event is not settled before that, so a process that dies leaves
// a call unlogged only if the event is delivered again.
func (d *Deliverer) log(ctx context.Context, k keys.Key, r event.Delivery) {
	data, err := json.Marshal(r)
	if err != nil {
		return // cannot happen: it has texts, numbers and a time
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
		away := !conn.IsConnected() || conn.Stats().Reconnects != reconnects // then the try itself may have been lost
		again := patience.failed(time.Since(began), away) && (away || !d.logFails.Load()) && !conn.IsClosed()
		began = time.Now()
		if !again || !backoff.Sleep(whole, backoff.Policy{First: 50 * time.Millisecond, Longest: logPause}.Delay(failures)) {
			d.logFails.Store(true)
			d.OnUnlogged()
			d.Logger.Error("delivery was not logged", "id", r.ID, "result", string(r.Result), "err", err)
			return
		}
	}
}

// store tries to store a record once. A new connection ends the try: the record or its acknowledgement may have gone with the old one,
// and the stream drops a second copy by its id.
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
