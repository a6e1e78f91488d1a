package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/config"
	"github.com/timerd-io/timerd/internal/connect"
	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/embedded"
	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/keys"
)

// ownServerPatience bounds the wait for a just started embedded server.
const ownServerPatience = 10 * time.Second

// CheckInstallation checks that Redis and the streams belong to the same installation, and lists its other timerds.
func (d *NATS) CheckInstallation(ctx context.Context, rdb redis.UniversalClient) diag.Findings {
	ctx, cancel := context.WithTimeout(ctx, 2*answerTimeout)
	defer cancel()
	var r diag.Findings
	state, err := streams.Inspect(ctx, rdb, d.js, d.want)
	if isAnswered(err) {
		return r // State reports the reason
	}
	if err != nil {
		r.Fail("let timerd read and write timerd:* in Redis, and call $JS.API.STREAM.INFO.*", "%v", err)
		return r
	}
	if state.Unknown != nil && !isAnswered(state.Unknown) {
		r.Warn("let timerd call $JS.API.STREAM.INFO."+d.want.DeliveryStream(),
			"cannot find the owner of the log of deliveries, if there is one: %v", state.Unknown)
	}
	id, unmarked := state.Redis, []string(nil)
	for _, o := range state.Owners {
		switch {
		// older than the marks of the others, which is fine
		case o.Installation == "" && o.Stream == d.want.DeliveryStream():
		case o.Installation == "":
			unmarked = append(unmarked, o.Stream)
		case id == "":
			id = o.Installation
			d.withoutIdentity(&r, id, state.Living[id])
		}
	}
	own := d.want
	own.Installation = id
	for _, o := range state.Owners {
		if fault := own.Foreign(o); fault != nil {
			f := fault.Finding("")
			f.Text += running(state.Living[o.Installation])
			r = append(r, f)
		}
	}
	for _, a := range state.Living[id] {
		if a.Elsewhere() && state.Redis != "" {
			r.Fail(fmt.Sprintf("stop one of the two, or give it streams of its own, and delete %s in its Redis",
				keys.Installation),
				"%.100q is of the same installation %.100q and serves another Redis, which may be a copy of this one",
				a.Instance, id)
		}
	}
	if state.Redis != "" && len(unmarked) > 0 {
		r.Warn("let the NATS user call $JS.API.STREAM.UPDATE.*; timerd then marks them",
			"%s: not marked as the installation's, so another one could take them", strings.Join(unmarked, ", "))
	}
	switch {
	case len(r) > 0:
	case id == "":
		r.OK("none yet: timerd makes one at its start")
	default:
		r.OK("%s, in Redis and the streams%s", id, running(state.Living[id]))
	}
	return r
}

// isAnswered reports whether an error is JetStream's answer, such as a missing leader. Without a right there is no
// answer.
func isAnswered(err error) bool {
	_, ok := errors.AsType[*jetstream.APIError](err)
	return ok
}

// withoutIdentity reports that only the streams have an identity.
func (d *NATS) withoutIdentity(r *diag.Findings, id string, living []streams.Answer) {
	for _, a := range living {
		if a.Elsewhere() {
			r.Fail("give this installation streams of its own with TIMERD_SUBJECT_PREFIX and TIMERD_STREAM; or, if "+
				"this Redis replaces the other one, stop the other timerd",
				"the streams belong to installation %.100q, whose timerd %.100q is running on another Redis", id,
				a.Instance)
			return
		}
	}
	r.Warn("none, if Redis is new or was flushed: at its start, timerd gives Redis the identity of the streams",
		"this Redis has no identity, and the streams belong to installation %.100q", id)
}

// running lists the timerds of an installation that answered.
func running(living []streams.Answer) string {
	if len(living) == 0 {
		return ""
	}
	var names []string
	for _, a := range living {
		names = append(names, fmt.Sprintf("%.100q", a.Instance))
	}
	return "; of it these are running: " + strings.Join(names, ", ")
}

// AdoptStreams gives the configured streams to the installation of the configured Redis, and prints its changes on w.
// It refuses while a timerd of the streams' installation answers. The error is a [*config.Error] if the configuration
// has a fault.
func AdoptStreams(ctx context.Context, w io.Writer) (err error) {
	c, err := config.Read(config.SectionRedis | config.SectionNATS)
	if err != nil {
		return err
	}
	conn := connect.Connector{Logger: slog.New(slog.DiscardHandler)}
	rdb, err := conn.Redis(ctx, c.Redis)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rdb.Close()) }()
	js, stop, err := openStreams(ctx, conn, c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	done, err := streams.Adopt(ctx, rdb, js, c.Streams())
	for _, o := range done.Were {
		was := "nobody"
		if o.Installation != "" {
			was = fmt.Sprintf("installation %.100q", o.Installation)
		}
		fmt.Fprintf(w, "stream %s belonged to %s and belongs to installation %.100q now\n", o.Stream, was, done.ID)
	}
	if err == nil && len(done.Were) == 0 && done.Unknown == nil {
		fmt.Fprintf(w, "nothing to do: no stream belongs to another installation than %.100q\n", done.ID)
	}
	if done.Unknown != nil {
		fmt.Fprintf(w, "the log of deliveries, if there is one, was not taken over: %v; let timerd call "+
			"$JS.API.STREAM.INFO.%s, and run this again\n",
			done.Unknown, c.Streams().DeliveryStream())
	}
	return err
}

// openStreams connects to NATS. If no timerd runs the embedded server, it runs it itself meanwhile.
func openStreams(ctx context.Context, conn connect.Connector,
	c config.Config) (js jetstream.JetStream, stop func() error, err error) {
	target, options := c.NATS.FromOutside(), []nats.Option(nil)
	end := func() error { return nil }
	if c.NATS.Embedded {
		server, err := conn.Embedded(ctx, c.NATS, 0)
		switch {
		case err == nil:
			target, options, end = c.NATS, []nats.Option{nats.InProcessServer(server)}, server.Stop
			conn.Patience = ownServerPatience
		case !errors.Is(err, embedded.ErrInUse):
			return nil, nil, err
		}
	}
	if js, err = conn.JetStream(ctx, target, options...); err != nil {
		return nil, nil, errors.Join(err, end())
	}
	if options == nil && c.NATS.Embedded { // a timerd runs it; the listening server may be another one
		if state, err := embedded.Inspect(c.NATS.DataDir); err != nil || !isServer(js.Conn(), state.Server) {
			js.Conn().Close()
			return nil, nil, errors.Join(err,
				fmt.Errorf("the server at %s is not the one of TIMERD_DATA_DIR, which a timerd runs: stop that "+
					"timerd, or %s", target.Shown, otherAddress))
		}
	}
	return js, func() error {
		js.Conn().Close()
		return end()
	}, nil
}
