package main

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/config"
	"github.com/timerd-io/timerd/internal/connect"
	"github.com/timerd-io/timerd/internal/history"
	"github.com/timerd-io/timerd/keys"
)

// pastOf returns a sentence about the last event of a key without a timer, or about its end without one; "" if NATS
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
	const enough = 20 // the newest may be deliveries and other actions
	page, err := history.New(js, c.NATS.Streams.Names).Search(ctx, history.Query{Key: key}, "", enough)
	namespace := keys.Namespace{App: key.App, Module: key.Module, Type: key.Type}
	for _, r := range page.Records {
		switch {
		case r.Fault != "":
		case r.Kind == keys.History:
			return fmt.Sprintf("at %s it %s", r.Stored.UTC().Format(timeLayout), plainLine(history.Words(r.Entry)))
		case r.Kind == keys.Operator && r.Entry.Kind == event.EntryCancel:
			perhaps := ""
			if len(r.Entry.Subjects) != 1 {
				perhaps = "; it may have been among them"
			}
			return fmt.Sprintf("at %s %s %s%s", r.Stored.UTC().Format(timeLayout), plainLine(history.Who(r.Entry)),
				plainLine(history.Words(r.Entry)), perhaps)
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
	return fmt.Sprintf("no event of it is in stream %s: a program cancelled it, or it was never set",
		c.NATS.Streams.FiredStream())
}

// plainLine makes a stranger's text fit for a line on a terminal.
func plainLine(s string) string { return keys.EncodeText(event.ErrorText(s)) }
