package status

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/internal/rights"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// server has the answers of one Redis server.
type server struct {
	node      *schedule.Node
	refused   *diag.Finding  // why it does not serve timerd
	broken    *diag.Finding  // its cluster is down
	lacking   rights.Lacking // the user's missing rights there
	unknown   error          // why these are unknown
	skew      diag.Findings  // of its clock
	uncounted error          // why its timers could not be counted
	seen      query.Overview
	aside     diag.Findings // timers set aside
}

func (s *server) addr() string { return s.node.Server().Options().Addr }

// refuses sets the reason why the server does not serve timerd.
func (s *server) refuses(f diag.Finding) {
	if f.Check == diag.CheckCluster {
		s.broken = &f
	} else {
		s.refused = &f
	}
}

// skew compares a server's clock with this machine's.
func skew(ctx context.Context, node *schedule.Node) (found diag.Findings) {
	before := time.Now()
	if at, err := node.Server().Time(ctx).Result(); err == nil {
		found.Skew(cmp.Or(node.Name(), "Redis"), before, time.Now(), at)
	}
	return found
}

// checkClocks reports the clocks of servers that differ from this machine's, and recent steps of clocks.
func checkClocks(f *facts, p *diag.Findings) {
	steps := f.steps()
	for i := range f.servers {
		for _, skewed := range f.servers[i].skew.Of(diag.Warn) {
			if step, ok := steps[f.servers[i].node.Name()]; ok {
				skewed.Text += "; it was stepped " + step
				delete(steps, f.servers[i].node.Name())
			}
			p.Add(skewed)
		}
	}
	for _, server := range slices.Sorted(maps.Keys(steps)) {
		p.Warn("use NTP, which sets clocks without steps; see what fired meanwhile: timerd watch --since 10m",
			"that of %s was stepped %s: timers fired early, or fire late, by as much",
			clean(cmp.Or(server, "Redis")), steps[server])
	}
	if len(*p) == 0 && f.redis != nil {
		p.OK("that of Redis agrees with the one here")
	}
}

// checkAside reports timers set aside.
func checkAside(f *facts, p *diag.Findings) {
	f.each(p, func(s *server, p *diag.Findings) { *p = append(*p, s.aside...) })
	if f.Aside != nil {
		*p = append(*p, f.Aside()...)
	}
	if len(*p) == 0 && f.redis != nil && !f.Brief {
		p.OK("no timers")
	}
}

// OfServer returns the problem of a Redis server, from the error of its answer or of the connection.
func OfServer(ctx context.Context, node *schedule.Node, err error) diag.Finding {
	addr := node.Server().Options().Addr
	refusal := diag.Refusal(err)
	switch {
	case schedule.IsClusterDown(err):
		return diag.Finding{Level: diag.Fail, Check: diag.CheckCluster, Text: addr + ": " +
			schedule.ErrClusterDown.Error(),
			Fix: "look at CLUSTER NODES for the master that is away, and bring it back"}
	case refusal == nil:
		if frozen := diag.Frozen(err, diag.RedisProcess, node.Server().Options().Network, addr); frozen != nil {
			return diag.Of(diag.CheckRedis, diag.Wrap(addr, frozen), "")
		}
		return diag.Finding{Level: diag.Fail, Check: diag.CheckRedis, Text: addr + ": " + err.Error(),
			Fix: "bring that server back: its timers wait there, and none is lost"}
	}
	f := diag.Of(diag.CheckRedis, diag.Wrap("Redis at "+addr, refusal), "")
	said, err := node.Server().Info(ctx, "memory", "replication").Result()
	if err != nil {
		return f
	}
	info := diag.ParseInfo(said)
	switch {
	case info["role"] == "slave":
		f.Fix = "let TIMERD_REDIS_URL name the master, " + info["master_host"] + ":" + info["master_port"] +
			"; or, to make this one the master: redis-cli REPLICAOF NO ONE"
	case refusal.Word == diag.OutOfMemory:
		f.Fix = moreMemory(info)
	}
	return f
}

// moreMemory returns the fix for a Redis out of memory. If its limit nears the memory of its machine, a higher limit
// would make the kernel kill it.
func moreMemory(info diag.Info) string {
	more, most := max(info.Number("used_memory"), info.Number("maxmemory"))/2*3, info.Number("total_system_memory")/10*8
	if most > 0 && more > most {
		return fmt.Sprintf("give the machine of Redis more memory than its %d bytes, then raise maxmemory, here and "+
			"in redis.conf: redis-cli CONFIG SET maxmemory %d; or delete keys that nobody needs",
			info.Number("total_system_memory"), more)
	}
	return fmt.Sprintf("raise maxmemory, here and in redis.conf: redis-cli CONFIG SET maxmemory %d", more)
}

// gatherAside reports timers that wait because of their keys, subjects or guards.
func (s Sources) gatherAside(ctx context.Context, node *schedule.Node) (found []Aside, p diag.Findings, err error) {
	all, err := query.ParkedOn(ctx, node)
	for _, a := range all {
		key, many := keys.EncodeText(a.Key.String()), count(a.Count, "timer waits", "timers wait")
		found = append(found, Aside{a.Reason, a.Count, key})
		user, err := node.Server().Do(ctx, "ACL", "WHOAMI").Text()
		if err != nil {
			user = rights.UnknownUser
		}
		if a.Reason == query.ParkedGuard {
			p.Warn(rights.Grant(user, "~"+printable(globOf(a.Guard)))+
				"; in a cluster, the guard needs the timer's hash tag",
				"%s because timerd may not read their guards, such as %s of %s", many,
				keys.Abbreviate(keys.EncodeText(a.Guard)), keys.Abbreviate(key))
			continue
		}
		if a.Reason == query.ParkedRefused {
			p.Warn("let timerd's NATS user publish to "+s.Streams.Subject(a.Key,
				keys.Fired)+", and let "+s.Streams.FiredStream()+" take it; if the timers are too late to fire, the "+
				"same for "+
				s.Streams.Subject(a.Key, keys.Dead)+" and "+s.Streams.DeadStream(),
				"%s because NATS refuses their subjects, such as that of %s", many, keys.Abbreviate(key))
			continue
		}
		p.Warn(rights.Grant(user, "~"+printable(keys.Namespace{App: a.Key.App}.Glob())),
			"%s because timerd may not read their keys, such as %s", many, keys.Abbreviate(key))
	}
	return found, p, err
}

// globOf returns the pattern of the keys with a guard's part before the first colon.
func globOf(guard string) string {
	app, _, some := strings.Cut(guard, ":")
	if !some {
		return guard
	}
	return app + ":*"
}

// printable returns a pattern of keys with ? for each unprintable byte.
func printable(glob string) string {
	var b strings.Builder
	for len(glob) > 0 {
		r, size := utf8.DecodeRuneInString(glob)
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			b.WriteString(strings.Repeat("?", size))
		} else {
			b.WriteString(glob[:size])
		}
		glob = glob[size:]
	}
	return b.String()
}
