// Package doctor looks at the servers that timerd needs and says what is wrong with them, each with its fix. It changes
// nothing: what it writes to Redis to learn its rights is a probe key of its own, which it deletes.
package doctor

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/config"
	"github.com/timerd-io/timerd/internal/connect"
	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/status"
	"github.com/timerd-io/timerd/schedule"
)

const checkConfiguration = "configuration"

const (
	// presentWithin bounds how long masters of a cluster that do not answer are waited for.
	presentWithin = 1500 * time.Millisecond
	// nodeTimeout bounds the checks of one server of Redis, so that one that falls silent leaves time for NATS.
	nodeTimeout = 20 * time.Second
)

// CheckAll reads the configuration and makes every check that its valid sections allow. valid tells
// whether all of them are. away is the masters of a cluster that do not answer; the others are checked without them.
// ctx bounds all checks together.
func CheckAll(ctx context.Context) (_ diag.Findings, away []schedule.Away, valid bool) {
	findings, broken, c := checkConfig()
	conn := connect.Connector{Logger: slog.New(slog.DiscardHandler)}
	from := status.Sources{Streams: c.Streams(), Clients: c.Clients()}
	var rdb redis.UniversalClient
	if broken&config.SectionRedis == 0 {
		if rdb = openRedis(ctx, conn, c, &findings); rdb != nil {
			defer func() { _ = rdb.Close() }() // nothing is pending on it
			from.Schedule = schedule.New(rdb, c.Service.MaxPayload)
			var err error
			if from.Masters, err = from.Schedule.PassOver(ctx, presentWithin); err != nil {
				findings = append(findings, diag.Of(diag.CheckRedis, err, connect.RedisFix(err)))
			}
			findings = append(findings, checkEachRedis(ctx, from.Schedule, c)...)
		}
	}
	if broken&config.SectionNATS == 0 {
		if js, free := openNATS(ctx, conn, c.NATS, &findings); js != nil {
			defer js.Conn().Close()
			d := NewNATS(js, c.Streams(), c.Service.MaxPayload)
			d.FreeDisk = free
			found := d.Check(ctx)
			findings = append(findings, found...)
			if !found.Has(diag.Fail, diag.CheckNATS, checkJetStream) { // else JetStream tells nothing
				from.JetStream = js
			}
		}
	}
	state := State(ctx, from)
	if from.JetStream != nil && rdb != nil && !state.Has(diag.Fail, diag.CheckRedis, diag.CheckRights, diag.CheckNATS) {
		findings = append(findings, NewNATS(from.JetStream, c.Streams(), c.Service.MaxPayload).CheckInstallation(ctx, rdb)...)
	}
	told := findings.Has(diag.Fail, diag.CheckRights) || !c.Service.KeyspaceEvents
	explained := status.ExplainsOwed(findings)
	state = slices.DeleteFunc(state, func(f diag.Finding) bool { // with the namespaces, those of this user are told above
		return f.Check == diag.CheckRights && (told || f.Level == diag.Warn) || f.Check == diag.CheckOwed && explained
	})
	findings = append(findings, state...)
	from.Clients.Address(findings)
	return findings, from.Masters, broken == 0
}

// State returns what is wrong as timerd status tells it, and what of that is as it should be.
func State(ctx context.Context, from status.Sources) diag.Findings {
	report := from.Gather(ctx)
	all := report.Problems
	fine := func(check, format string, args ...any) {
		if !all.Has(diag.Fail, check) && !all.Has(diag.Warn, check) {
			all.OK(check, format, args...)
		}
	}
	if r := report.Redis; r != nil {
		if len(r.Timerds) > 0 {
			fine(diag.CheckTimerds, "%d alive, of version %s, with the same settings", len(r.Timerds), r.Timerds[0].Version)
		}
		fine(diag.CheckAside, "no timers")
		fine(diag.CheckClock, "that of Redis agrees with the one here")
	}
	if n := report.NATS; n != nil {
		names := from.Streams.Names
		fine(diag.CheckStreams, "%s, %s and %s fit; duplicate window at least %s", names.FiredStream(), names.RetryStream(), names.DeadStream(), diag.Duration(from.Streams.MinDuplicates))
		if slices.ContainsFunc(n.Streams, func(s status.Stream) bool { return s.Name == names.DeliveryStream() }) {
			waiting, working := uint64(0), 0
			for _, c := range n.Webhooks {
				waiting, working = waiting+c.Waiting, working+c.Working
			}
			fine(diag.CheckWebhooks, "%s fits; consumers of timerd deliver: %d; events that wait: %d, in work: %d", names.DeliveryStream(), len(n.Webhooks), waiting, working)
		}
	}
	return all
}

// checkConfig reads the configuration section by section, so that a fault in
// one does not hide what can be said about the others.
func checkConfig() (r diag.Findings, broken config.Section, all config.Config) {
	add := func(f diag.Finding) {
		if !slices.Contains(r, f) {
			r = append(r, f)
		}
	}
	for _, s := range []config.Section{config.SectionLog, config.SectionRedis, config.SectionNATS, config.SectionService} {
		c, err := config.Read(s)
		if faults, ok := errors.AsType[*config.Error](err); ok {
			broken |= s
			for _, fault := range faults.Faults {
				add(diag.Of(checkConfiguration, fault, "set the variable as it says; timerd help config explains each one"))
			}
		}
		for _, warning := range c.Warnings {
			add(diag.Finding{Level: diag.Warn, Check: checkConfiguration, Text: warning, Fix: "rename the variable or unset it"})
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
		r.OK(checkConfiguration, "valid")
	}
	return r, broken, all
}

// openRedis connects to Redis. It returns nil if it cannot.
func openRedis(ctx context.Context, conn connect.Connector, c config.Config, r *diag.Findings) redis.UniversalClient {
	rdb, err := conn.Redis(ctx, c.Redis)
	if err != nil {
		*r = append(*r, diag.Of(diag.CheckRedis, err, connect.RedisFix(err)))
		return nil
	}
	r.OK(diag.CheckRedis, "%s", c.Redis.Shown)
	return rdb
}

// checkEachRedis checks the servers of Redis, all at once: one that is silent takes no time from the others.
// One that refuses what is asked is left to [State], which says why: what it would say here comes of that.
func checkEachRedis(ctx context.Context, s *schedule.Schedule, c config.Config) (r diag.Findings) {
	nodes, _ := s.Nodes(ctx) // State tells as well
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

// openNATS connects to NATS. It returns nil if it cannot. free is how many bytes the disk of its streams has left, if that is
// known.
func openNATS(ctx context.Context, conn connect.Connector, c config.NATS, r *diag.Findings) (js jetstream.JetStream, free uint64) {
	var nc *nats.Conn
	if c.Embedded {
		state, ok := dataDir(c.DataDir, r)
		if !ok {
			return nil, 0
		}
		nc, free = openEmbedded(ctx, conn, c, state, r), state.Free
	} else {
		nc = dialNATS(ctx, conn, c, r)
	}
	if nc == nil {
		return nil, 0
	}
	js, err := jetstream.New(nc)
	if err != nil {
		nc.Close()
		r.Fail(diag.CheckNATS, "correct TIMERD_NATS_URL", "%v", err)
		return nil, 0
	}
	r.OK(diag.CheckNATS, "%s", c.FromOutside().Shown)
	return js, free
}

// dialNATS connects to a NATS server that is not embedded. It returns nil if it cannot.
func dialNATS(ctx context.Context, conn connect.Connector, c config.NATS, r *diag.Findings) *nats.Conn {
	nc, err := conn.NATS(ctx, c)
	if err != nil {
		*r = append(*r, diag.Of(diag.CheckNATS, err, connect.NATSFix(c, err)))
		return nil
	}
	return nc
}
