package main

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/timerd-io/timerd/internal/config"
	"github.com/timerd-io/timerd/internal/connect"
	"github.com/timerd-io/timerd/internal/history"
	"github.com/timerd-io/timerd/keys"
)

// pastOf returns a sentence about the last event of a key without a timer, with the command that shows more; "" if NATS
// does not answer.
func pastOf(ctx context.Context, key keys.Key) string {
	c, err := config.Read(config.SectionNATS)
	if err != nil {
		return ""
	}
	js, err := connect.Connector{Logger: slog.New(slog.DiscardHandler)}.JetStream(ctx, c.NATS.FromOutside())
	if err != nil {
		return ""
	}
	defer js.Conn().Close()
	const enough = 10 // the newest may be letters and deliveries
	page, err := history.New(js, c.NATS.Streams.Names).Search(ctx, history.Query{Key: key}, "", enough)
	namespace := keys.Namespace{App: key.App, Module: key.Module, Type: key.Type}
	for _, r := range page.Records {
		switch {
		case r.Fault != "":
		case r.Kind == keys.Fired:
			hours := int(time.Since(r.Stored).Hours()) + 1
			return fmt.Sprintf("it last fired at %s, attempt %d: timerd watch %s --since %dh",
				r.Stored.UTC().Format(timeLayout), r.Event.Attempt, namespace, hours)
		case r.Kind == keys.Dead:
			return fmt.Sprintf("it became a dead letter at %s: timerd dead ls %s", r.Stored.UTC().Format(timeLayout),
				namespace)
		}
	}
	switch {
	case err != nil:
		return ""
	case page.Place != "":
		return fmt.Sprintf("no event of it is in stream %s since %s", c.NATS.Streams.FiredStream(),
			page.Since.UTC().Format(timeLayout))
	}
	return fmt.Sprintf("no event of it is in stream %s: it was cancelled, or never set", c.NATS.Streams.FiredStream())
}
