package streams

import (
	"context"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/event"
)

const (
	// mostEnds limits the ends that wait to be written; further ones are lost.
	mostEnds = 1 << 14
	// ensurePause is the interval of checks that the stream exists, while there are ends to write.
	ensurePause = time.Minute
)

// Ends writes timers' ends to the history, as far as NATS takes them: nothing waits for it, and an end may be lost.
type Ends struct {
	js      jetstream.JetStream
	streams Config
	log     *slog.Logger
	entries chan event.Entry
}

// NewEnds returns an Ends. Run writes what Add has been given.
func NewEnds(js jetstream.JetStream, s Config, log *slog.Logger) *Ends {
	return &Ends{js: js, streams: s, log: log, entries: make(chan event.Entry, mostEnds)}
}

// Add adds a timer's end, of now. It never waits. A nil Ends ignores it.
func (e *Ends) Add(end event.Entry) {
	if e == nil {
		return
	}
	end.Time = time.Now()
	select {
	case e.entries <- end:
	default:
	}
}

// Run writes ends until ctx ends, and then the waiting ones.
func (e *Ends) Run(ctx context.Context) {
	var ensured time.Time
	for {
		select {
		case end := <-e.entries:
			if time.Since(ensured) > ensurePause {
				e.ensure(ctx)
				ensured = time.Now()
			}
			e.write(end)
		case <-ctx.Done():
			for len(e.entries) > 0 {
				e.write(<-e.entries)
			}
			return
		}
	}
}

// ensure makes the stream if it is missing.
func (e *Ends) ensure(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := EnsureHistory(ctx, e.js, e.streams); err != nil {
		e.log.Warn("timers that end without an event are not in the history", "err", err)
	}
}

// write publishes an end without waiting for an answer.
func (e *Ends) write(end event.Entry) {
	subject, err := e.streams.historySubject(end)
	var data []byte
	if err == nil {
		data, err = end.AppendJSON(nil)
	}
	if err == nil {
		err = e.js.Conn().Publish(subject, data)
	}
	if err != nil {
		e.log.Debug("a timer's end is not in the history", "err", err)
	}
}
