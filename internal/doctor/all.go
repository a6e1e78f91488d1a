// Package doctor checks timerd's servers and reports their problems, each with its fix. It changes nothing: to learn
// its rights it writes a probe key of its own to Redis, and deletes it.
package doctor

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/config"
	"github.com/timerd-io/timerd/internal/connect"
	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/rights"
	"github.com/timerd-io/timerd/internal/status"
	"github.com/timerd-io/timerd/schedule"
)

const (
	// presentWithin bounds the wait for silent masters of a cluster.
	presentWithin = 1500 * time.Millisecond
	// nodeTimeout bounds the checks of one server of Redis, so that a silent one leaves time for NATS.
	nodeTimeout = 20 * time.Second
)

// examination has the subjects of doctor's checks.
type examination struct {
	config  config.Config
	rdb     redis.UniversalClient // nil if it cannot be reached
	from    status.Sources
	freeNow uint64 // free bytes on the disk of the embedded NATS; 0 if unknown

	configured, directory diag.Findings // of the settings, and of the directory of the embedded NATS
}

// CheckAll reads the configuration and makes every check that its valid sections allow: the checks of timerd status,
// and checks of the servers' settings. valid reports whether all sections are valid. away has the silent masters of a
// cluster; the others are checked without them. ctx bounds all checks together.
func CheckAll(ctx context.Context) (_ diag.Findings, away []schedule.Away, valid bool) {
	x := &examination{}
	var broken config.Section
	x.configured, broken, x.config = checkConfig()
	c := x.config
	conn := connect.Connector{Logger: slog.New(slog.DiscardHandler)}
	x.from = status.Sources{Streams: c.Streams(), Clients: c.Clients(),
		Needs: rights.Needs{Namespaces: c.Service.Namespaces, Events: c.Service.KeyspaceEvents}}
	if broken&config.SectionRedis == 0 {
		if x.openRedis(ctx, conn); x.rdb != nil {
			defer func() { _ = x.rdb.Close() }() // nothing is pending on it
		}
	}
	if broken&config.SectionNATS == 0 {
		if x.openNATS(ctx, conn); x.from.JetStream != nil {
			defer x.from.JetStream.Conn().Close()
		}
	}
	state := x.from.Gather(ctx).Found
	findings := slices.Concat(diag.Run(x.checks(), ctx, state), x.checkServers(ctx, state), state)
	x.from.Clients.Address(findings)
	return findings, x.from.Masters, broken == 0
}

// Checks returns the names of doctor's own checks, without those of timerd status.
func Checks() []string {
	return slices.Concat(diag.Names((&examination{}).checks()), diag.Names((&Redis{}).checks()),
		diag.Names((&NATS{}).checks()))
}

// checks returns the checks that are not about a single server.
func (x *examination) checks() []diag.Check[context.Context] {
	told := func(f *diag.Findings) func(context.Context, *diag.Findings) {
		return func(_ context.Context, r *diag.Findings) { *r = *f }
	}
	return []diag.Check[context.Context]{
		{Name: "configuration", Run: told(&x.configured)},
		{Name: "data directory", Run: told(&x.directory)},
		{Name: "installation", Needs: []string{diag.CheckRedis, diag.CheckRights, diag.CheckNATS}, Run: x.installation},
	}
}

// installation judges whether Redis and the streams belong to the same installation.
func (x *examination) installation(ctx context.Context, r *diag.Findings) {
	if x.rdb != nil && x.from.JetStream != nil {
		*r = NewNATS(x.from.JetStream, x.config.Streams(), x.config.Service.MaxPayload).CheckInstallation(ctx, x.rdb)
	}
}

// checkServers makes the checks of the servers' settings. state has the findings of timerd status.
func (x *examination) checkServers(ctx context.Context, state diag.Findings) (found diag.Findings) {
	if x.from.Schedule != nil {
		found = checkEachRedis(ctx, x.from.Schedule, x.config)
	}
	if x.from.JetStream != nil {
		d := NewNATS(x.from.JetStream, x.config.Streams(), x.config.Service.MaxPayload)
		d.FreeDisk = x.freeNow
		found = append(found, d.Check(ctx, state)...)
	}
	return found
}

// checkConfig reads the configuration section by section, so that a fault in one does not hide findings about the
// others.
func checkConfig() (r diag.Findings, broken config.Section, all config.Config) {
	add := func(f diag.Finding) {
		if !slices.Contains(r, f) {
			r = append(r, f)
		}
	}
	for _, s := range []config.Section{config.SectionLog, config.SectionRedis, config.SectionNATS,
		config.SectionService} {
		c, err := config.Read(s)
		if faults, ok := errors.AsType[*config.Error](err); ok {
			broken |= s
			for _, fault := range faults.Faults {
				add(diag.Of("", fault, "set the variable as it says; timerd help config explains each one"))
			}
		}
		for _, warning := range c.Warnings {
			add(diag.Finding{Level: diag.Warn, Text: warning, Fix: "rename the variable or unset it"})
		}
		switch s {
		case config.SectionRedis:
			all.Redis = c.Redis
		case config.SectionNATS:
			all.NATS = c.NATS
		case config.SectionService:
			all.Service = c.Service
		}
	}
	if all.Service.MaxPayload <= 0 {
		all.Service.MaxPayload = schedule.DefaultMaxPayload
	}
	if len(r) == 0 {
		r.OK("valid")
	}
	return r, broken, all
}

// openRedis connects to Redis, or notes the reason for the failure.
func (x *examination) openRedis(ctx context.Context, conn connect.Connector) {
	rdb, err := conn.Redis(ctx, x.config.Redis)
	if x.rdb = rdb; err == nil {
		sched := schedule.Open(ctx, rdb, x.config.Service.MaxPayload)
		if x.from.Masters, err = sched.PassOver(ctx, presentWithin); err == nil {
			x.from.Schedule = sched
		}
	}
	if err != nil {
		x.from.NoRedis = diag.Of(diag.CheckRedis, err, connect.RedisFix(err))
	}
}

// checkEachRedis checks the servers of Redis, all at once: a silent one does not delay the others. A server that
// refuses requests is left to [State], which reports the reason: other findings would be consequences.
func checkEachRedis(ctx context.Context, s *schedule.Schedule, c config.Config) (r diag.Findings) {
	nodes, _ := s.Nodes(ctx) // State reports the error too
	ctx, cancel := context.WithTimeout(ctx, nodeTimeout)
	defer cancel()
	found := make([]diag.Findings, len(nodes))
	var checking sync.WaitGroup
	for i, node := range nodes {
		d := NewRedis(node)
		d.DB, d.Namespaces = c.Redis.DB, c.Service.Namespaces
		d.MaxPayload, d.Events = c.Service.MaxPayload, c.Service.KeyspaceEvents
		checking.Go(func() {
			if diag.Refusal(node.Check(ctx)) == nil {
				found[i] = d.Check(ctx)
			}
		})
	}
	checking.Wait()
	for i, node := range nodes {
		c.Clients().On(node.Name()).Address(found[i])
		for _, f := range found[i] {
			if node.Name() != "" {
				f.Text = node.Name() + ": " + f.Text
			}
			r = append(r, f)
		}
	}
	return r
}

// openNATS connects to NATS, or notes the reason why it cannot, or not yet.
func (x *examination) openNATS(ctx context.Context, conn connect.Connector) {
	c := x.config.NATS
	var nc *nats.Conn
	var err error
	if c.Embedded {
		state, ok := dataDir(c.DataDir, &x.directory)
		if !ok {
			return
		}
		x.freeNow = state.Free
		nc, x.from.NoNATS = openEmbedded(ctx, conn, c, state)
	} else if nc, err = conn.NATS(ctx, c); err != nil {
		x.from.NoNATS = diag.Of(diag.CheckNATS, err, connect.NATSFix(c, err))
	}
	if nc == nil {
		return
	}
	if x.from.JetStream, err = connect.NewJetStream(nc, c); err != nil {
		nc.Close()
		x.from.NoNATS = diag.Of(diag.CheckNATS, err, connect.NATSFix(c, err))
	}
}
