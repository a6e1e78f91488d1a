package main

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/admin"
	"github.com/timerd-io/timerd/internal/config"
	"github.com/timerd-io/timerd/internal/connect"
	"github.com/timerd-io/timerd/internal/streams"
)

// journal writes a command's actions to the history. It connects to NATS while the command works, and says in one line
// if that fails.
type journal struct {
	*admin.Journal
	stop context.CancelFunc

	mu     sync.Mutex
	js     jetstream.JetStream
	closed bool
}

// newJournal begins to connect to NATS. The caller closes the journal.
func newJournal(cmd *cobra.Command) *journal {
	c, err := config.Read(config.SectionNATS)
	ctx, stop := context.WithCancel(context.WithoutCancel(cmd.Context()))
	j := &journal{stop: stop}
	j.Journal = admin.NewJournal(func() (jetstream.JetStream, error) {
		if err != nil {
			return nil, err
		}
		js, err := connect.Connector{Logger: slog.New(slog.DiscardHandler)}.JetStream(ctx, c.NATS.FromOutside())
		if err != nil {
			return nil, err
		}
		return js, j.keep(js)
	}, c.Streams(), event.ViaCommand, notNoted(cmd, c.NATS.Chosen))
	return j
}

// keep keeps a connection until the journal is closed.
func (j *journal) keep(js jetstream.JetStream) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		js.Conn().Close()
		return context.Canceled
	}
	j.js = js
	return nil
}

// close closes the connection, or ends the try to connect.
func (j *journal) close() {
	j.stop()
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed = true; j.js != nil {
		j.js.Conn().Close()
	}
}

// journalOn returns a Journal with an existing connection.
func journalOn(cmd *cobra.Command, js jetstream.JetStream, s streams.Config) *admin.Journal {
	open := func() (jetstream.JetStream, error) { return js, nil }
	return admin.NewJournal(open, s, event.ViaCommand, notNoted(cmd, true))
}

// notNoted returns a function that says why an action is not in the history. It says nothing where nobody has chosen an
// address of NATS, and none is at the default one.
func notNoted(cmd *cobra.Command, chosen bool) func(error) {
	return func(err error) {
		if !chosen {
			return
		}
		why := strings.Join(strings.Fields(event.ErrorText(err.Error())), " ")
		fmt.Fprintf(cmd.ErrOrStderr(), "timerd: not in the history, but done: %s\n", why)
	}
}
