package deliver

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

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
)

// log writes a record and waits until it is stored. The event is not settled before that, so a process that dies leaves
// a call unlogged only if the event is delivered again.
func (d *Deliverer) log(ctx context.Context, k keys.Key, r event.Delivery) {
	data, err := json.Marshal(r)
	if err != nil {
		return // cannot happen: it has texts, numbers and a time
	}
	message := &nats.Msg{
		Subject: d.Names.Subject(k, keys.Delivery),
		Header:  nats.Header{event.ContentTypeHeader: {event.DataJSON}, event.MsgIDHeader: {nuid.Next()}},
		Data:    data,
	}
	whole, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(logAtLast, cancel) })()
	until := time.Now().Add(time.Duration(d.logPatience.Load()))
	for failures := 1; ; failures++ {
		try, end := context.WithTimeout(whole, logTry)
		_, err := d.js.PublishMsg(try, message)
		if errors.Is(err, jetstream.ErrNoStreamResponse) {
			err = errors.Join(err, d.EnsureLog(try))
		}
		end()
		if err == nil {
			d.logFails.Store(false)
			return
		}
		connected := d.js.Conn().IsConnected()
		if !connected {
			until = time.Now().Add(time.Duration(d.logPatience.Load()))
		}
		if time.Now().After(until) || connected && d.logFails.Load() || d.js.Conn().IsClosed() || !backoff.Sleep(whole, backoff.Policy{First: 50 * time.Millisecond, Longest: time.Second}.Delay(failures)) {
			d.logFails.Store(true)
			d.OnUnlogged()
			d.Logger.Error("delivery was not logged", "id", r.ID, "result", string(r.Result), "err", err)
			return
		}
	}
}
