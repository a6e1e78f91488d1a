package doctor

import (
	"cmp"
	"context"
	"crypto/rand"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/keys"
)

// right is a command that timerd runs, in a form that does no harm.
type right struct {
	command string // as ACL SETUSER takes it: name or name|subcommand
	args    []any
	keys    string // the pattern of the keys that it is run on, "" if it takes none
}

// rightsOn returns what makes the right to run a command on a probe, whose key matches the pattern.
func rightsOn(probe, pattern string) func(command string, args ...any) right {
	return func(command string, args ...any) right {
		return right{command: command, args: append([]any{probe}, args...), keys: pattern}
	}
}

func (t right) line() []any {
	var line []any
	for word := range strings.SplitSeq(t.command, "|") {
		line = append(line, word)
	}
	return append(line, t.args...)
}

// generalRights are those that concern no key. What would change something is given arguments that Redis refuses.
func generalRights() []right {
	return []right{
		{command: "ping"},
		{command: "info", args: []any{"server"}},
		{command: "time"},
		{command: "config|get", args: []any{"notify-keyspace-events"}},
		{command: "scan", args: []any{"0", "COUNT", "1"}},
		{command: "exec"}, // without MULTI
		{command: "eval", args: []any{"return 1", "0"}},
		{command: "evalsha", args: []any{strings.Repeat("0", 40), "0"}},
		{command: "script|load", args: []any{"return 1"}},
		{command: "function|list", args: []any{"LIBRARYNAME", "timerd"}},
		{command: "function|load", args: []any{"no code"}},
		{command: "fcall", args: []any{"timerd_doctor", "0"}},
		{command: "fcall_ro", args: []any{"timerd_doctor", "0"}},
		{command: "publish", args: []any{keys.WakeChannel, ""}},
	}
}

// clusterRights are those that a cluster needs besides. Claims are told on a channel of the server.
func clusterRights(claimed string) []right {
	return []right{
		{command: "cluster|slots"}, {command: "cluster|info"}, {command: "cluster|keyslot", args: []any{"k"}}, {command: "asking"},
		{command: "spublish", args: []any{claimed, ""}},
	}
}

// indexRights are those on timerd's own keys. The probe is a hash, so commands on
// other types do nothing. It is gone at the end.
func indexRights(probe string) []right {
	on := rightsOn(probe, "timerd:*")
	return []right{
		on("hset", "f", ""), on("hsetnx", "f", ""), on("hget", "f"), on("hmget", "f"), on("hexists", "f"), on("hdel", "g"), on("hstrlen", "f"),
		on("hlen"), on("hkeys"), on("hgetall"),
		on("zadd", "0", "m"), on("zrange", "0", "0"), on("zrangebyscore", "0", "0"), on("zscore", "m"), on("zmscore", "m"), on("zcard"), on("zcount", "0", "0"),
		on("zscan", "0"), on("zrem", "n"), on("zremrangebyrank", "5", "5"), on("zremrangebyscore", "5", "5"),
		on("set", "", "PX", "1000"), on("get"), on("exists"), on("del"), on("unlink"),
	}
}

// timerRights are those on the keys of a namespace. There is no key of the probe's name, so each does nothing.
func timerRights(probe, pattern string) []right {
	on := rightsOn(probe, pattern)
	return []right{
		on("set", "", "XX", "PX", "1000"), on("exists"), on("type"), on("pexpiretime"), on("getrange", "0", "1"),
		on("hlen"), on("hgetall"), on("del"), on("object|idletime"), on("memory|usage", "SAMPLES", "0"), on("pexpireat", "1"),
	}
}

// nonce returns a name that nobody else uses.
func nonce() string { return strings.ToLower(rand.Text()) }

// rights tries every command that timerd runs, on keys like those that it runs
// them on. Unlike ACL DRYRUN that needs no right to look at rights.
func (d *Redis) rights(ctx context.Context, r *diag.Findings) {
	tried := slices.Concat(generalRights(), indexRights(d.node.AnyPartition().Prefix()+"doctor-"+nonce()))
	if d.inCluster() {
		tried = append(tried, clusterRights(d.node.ClaimedChannel())...)
	}
	for _, n := range d.Namespaces {
		tried = append(tried, timerRights(probeIn(n), n.Glob())...)
	}
	replies := make([]*redis.Cmd, len(tried))
	pipe := d.rdb.Pipeline()
	for i, t := range tried {
		replies[i] = pipe.Do(ctx, t.line()...)
	}
	_, _ = pipe.Exec(ctx) // each reply has its own error

	var grants []string
	for i, t := range tried {
		if err := replies[i].Err(); redis.IsPermissionError(err) {
			grants = append(grants, t.grant(err))
		}
	}
	if d.Events {
		grants = append(grants, d.channelGrants(ctx)...)
	}
	slices.Sort(grants)
	grants = slices.Compact(grants)

	user := d.user(ctx)
	if len(grants) > 0 {
		lacking := strings.Join(grants, " ")
		r.Fail(diag.CheckRights, "ACL SETUSER "+user+" "+lacking+"; deploy/users.acl has them all", "user %s lacks %s", user, lacking)
		return
	}
	where := "on its index"
	if len(d.Namespaces) > 0 {
		where += " and in " + d.Namespaces.String()
	}
	r.OK(diag.CheckRights, "user %s may do all that timerd does %s", user, where)
}

// grant returns what ACL SETUSER must grant, after a refusal.
func (t right) grant(refusal error) string {
	switch text := refusal.Error(); {
	case strings.Contains(text, "channels used") || strings.Contains(text, "access a channel"):
		return "&" + keys.WakeChannel
	case strings.Contains(text, "keys used") || strings.Contains(text, "access a key"):
		return "~" + t.keys
	}
	return "+" + t.command
}

// channelGrants tries to subscribe to what the listener subscribes to, and returns what must be granted for it.
func (d *Redis) channelGrants(ctx context.Context) []string {
	var grants []string
	try := func(command, name, grant string) {
		sub := d.rdb.Subscribe(ctx)
		defer func() { _ = sub.Close() }()
		subscribe := sub.Subscribe
		if command == "psubscribe" {
			subscribe = sub.PSubscribe
		}
		err := subscribe(ctx, name)
		if err == nil {
			_, err = sub.Receive(ctx)
		}
		if redis.IsPermissionError(err) {
			if strings.Contains(err.Error(), "to run the") {
				grant = "+" + command
			}
			grants = append(grants, grant)
		}
	}
	canary := keys.KeyspacePrefix(d.DB) + keys.CanaryPrefix
	try("subscribe", canary+nonce(), "&"+canary+"*")
	for _, channel := range []string{keys.ExpiredChannel(d.DB), keys.WakeChannel} {
		try("subscribe", channel, "&"+channel)
	}
	for _, n := range d.Namespaces {
		pattern := keys.KeyspacePattern(d.DB, n)
		try("psubscribe", pattern, "&"+pattern)
	}
	return grants
}

// user returns whom timerd is logged in as.
func (d *Redis) user(ctx context.Context) string {
	user, err := d.rdb.Do(ctx, "ACL", "WHOAMI").Text()
	if err != nil {
		return "<user>"
	}
	return user
}

// probeIn returns a key of a namespace that no timer has.
func probeIn(n keys.Namespace) string {
	const some = "timerd-doctor"
	return keys.Key{App: cmp.Or(n.App, some), Module: cmp.Or(n.Module, some), Type: cmp.Or(n.Type, some), ID: nonce()}.String()
}
