package doctor

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/config"
	"github.com/timerd-io/timerd/internal/connect"
	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/internal/status"
	"github.com/timerd-io/timerd/schedule"
)

// Names of the checks before those of the servers themselves.
const (
	checkConfiguration = "configuration"
	checkRedis         = "redis"
	checkNATS          = "nats"
	checkTimerds       = "timerds"
)

// CheckUnattended is the check of the finding that no timerd is alive.
const CheckUnattended = "unattended"

// CheckAll reads the configuration and makes every check that its valid sections allow. valid tells
// whether all of them are. ctx bounds all checks together.
func CheckAll(ctx context.Context) (_ []Finding, valid bool) {
	findings, broken, c := checkConfig()
	conn := connect.Connector{Logger: slog.New(slog.DiscardHandler)}
	var rdb redis.UniversalClient
	if broken&config.SectionRedis == 0 {
		if rdb = findings.openRedis(ctx, conn, c); rdb != nil {
			defer func() { _ = rdb.Close() }() // nothing is pending on it
			findings = append(findings, checkEachRedis(ctx, rdb, c)...)
			findings.checkTimerds(ctx, rdb)
		}
	}
	if broken&config.SectionNATS == 0 {
		if js, free := findings.openNATS(ctx, conn, c.NATS); js != nil {
			defer js.Conn().Close()
			d := NewNATS(js, c.Streams(), c.Service.MaxPayload)
			d.FreeDisk = free
			findings = append(findings, d.Check(ctx)...)
			if rdb != nil {
				findings = append(findings, d.CheckInstallation(ctx, rdb)...)
			}
		}
	}
	return findings, broken == 0
}

// checkConfig reads the configuration section by section, so that a fault in
// one does not hide what can be said about the others.
func checkConfig() (r report, broken config.Section, all config.Config) {
	add := func(f Finding) {
		if !slices.Contains(r, f) {
			r = append(r, f)
		}
	}
	for _, s := range []config.Section{config.SectionLog, config.SectionRedis, config.SectionNATS, config.SectionService} {
		c, err := config.Read(s)
		if faults, ok := errors.AsType[*config.Error](err); ok {
			broken |= s
			for _, fault := range faults.Faults {
				add(Finding{Fail, checkConfiguration, fault.Error(), "correct the variable; timerd help config explains each one"})
			}
		}
		for _, warning := range c.Warnings {
			add(Finding{Warn, checkConfiguration, warning, "rename the variable or unset it"})
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
		r.ok(checkConfiguration, "valid")
	}
	return r, broken, all
}

// openRedis connects to Redis. It returns nil if it cannot.
func (r *report) openRedis(ctx context.Context, conn connect.Connector, c config.Config) redis.UniversalClient {
	rdb, err := conn.Redis(ctx, c.Redis)
	if err != nil {
		text, fix := connect.RedisFix(err)
		r.fail(checkRedis, fix, "%s", text)
		return nil
	}
	r.ok(checkRedis, "%s", c.Redis.Shown)
	return rdb
}

// checkEachRedis checks each of the servers of Redis.
func checkEachRedis(ctx context.Context, rdb redis.UniversalClient, c config.Config) (r report) {
	nodes, err := schedule.New(rdb, c.Service.MaxPayload).Nodes(ctx)
	if len(nodes) == 0 {
		r.fail(checkRedis, "let CLUSTER NODES show what is wrong with the cluster", "%v", err)
	}
	for _, node := range nodes {
		d := NewRedis(node)
		d.DB, d.Namespaces = c.Redis.DB(), c.Service.Namespaces
		d.Names = c.Streams().Names
		d.MaxPayload, d.Events = c.Service.MaxPayload, c.Service.KeyspaceEvents
		for _, f := range d.Check(ctx) {
			if node.Name() != "" {
				f.Text = node.Name() + ": " + f.Text
			}
			r = append(r, f)
		}
	}
	return r
}

// checkTimerds tells who serves the schedule, and whether they agree. That nobody does is no fault: Redis is checked before
// the first start too.
func (r *report) checkTimerds(ctx context.Context, rdb redis.UniversalClient) {
	members, err := query.Members(ctx, schedule.New(rdb, schedule.DefaultMaxPayload))
	if err != nil {
		return // the rights, or the cluster's state, say why
	}
	if text := status.Unattended(members); text != "" {
		r.ok(CheckUnattended, "%s", text)
		return
	}
	differences := status.Differences(members)
	for _, d := range differences {
		r.warn(checkTimerds, "give all timerds of this Redis the same "+d.Setting+", and start those anew that had another", "%s", d)
	}
	var versions []string
	alive := 0
	for _, v := range status.Versions(members) {
		alive += len(v.Instances)
		versions = append(versions, v.Value)
	}
	switch {
	case len(versions) > 1:
		r.warn(checkTimerds, "end the update: put the same version everywhere",
			"%d are alive, of different versions, as in a rolling update: %s", alive, strings.Join(versions, ", "))
	case len(differences) == 0:
		r.ok(checkTimerds, "%d alive, of version %s, with the same settings", alive, versions[0])
	}
}

// openNATS connects to NATS. It returns nil if it cannot. free is how many bytes the disk of its streams has left, if that is
// known.
func (r *report) openNATS(ctx context.Context, conn connect.Connector, c config.NATS) (js jetstream.JetStream, free uint64) {
	var nc *nats.Conn
	if c.Embedded {
		state, ok := r.dataDir(c.DataDir)
		if !ok {
			return nil, 0
		}
		nc, free = r.openEmbedded(ctx, conn, c, state), state.Free
	} else {
		nc = r.dialNATS(ctx, conn, c)
	}
	if nc == nil {
		return nil, 0
	}
	js, err := jetstream.New(nc)
	if err != nil {
		nc.Close()
		r.fail(checkNATS, "correct TIMERD_NATS_URL", "%v", err)
		return nil, 0
	}
	r.ok(checkNATS, "%s", c.FromOutside().Shown)
	return js, free
}

// dialNATS connects to a NATS server that is not embedded. It returns nil if it cannot.
func (r *report) dialNATS(ctx context.Context, conn connect.Connector, c config.NATS) *nats.Conn {
	nc, err := conn.NATS(ctx, c)
	if err != nil {
		text, fix := connect.NATSFix(c, err)
		r.fail(checkNATS, fix, "%s", text)
		return nil
	}
	return nc
}
