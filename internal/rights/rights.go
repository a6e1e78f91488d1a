// Package rights finds the missing rights of timerd's user in Redis, and the command that grants them.
package rights

import (
	"cmp"
	"context"
	"crypto/rand"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// Needs are the rights that timerd needs on a Redis server.
type Needs struct {
	Namespaces keys.Namespaces // it touches their keys; none for its index only
	Events     bool            // it receives keyspace events
	Hears      keys.Namespaces // further ones whose events it receives
}

// Lacking has the missing rights of timerd's user, and the missing commands of its server.
type Lacking struct {
	User     string
	NoACL    bool     // the server has no command to grant rights
	Commands []string // and keys, in the form of ACL SETUSER
	Channels []string // for keyspace events, in the form of ACL SETUSER
	Missing  []string // commands that no user has, for example removed by rename-command: name or name|subcommand
}

// UnknownUser is the User of a Lacking if Redis does not reveal the name.
const UnknownUser = "<user>"

const (
	// Optional rights. Without the first ones, timerd cannot read Redis's settings; without the last, libraries of
	// earlier versions stay.
	withoutConfig, withoutDelete = "+config|get", "+function|delete"
	// anyDatabase grants every database of a Valkey with databases in its ACLs. db= would replace the user's own.
	anyDatabase = "alldbs"
)

// Grant returns the fix that grants rights to a user. ACL SETUSER alone is lost at the next start of Redis.
func Grant(user string, grants ...string) string {
	words := []string{"grant it in the ACL file too, as deploy/users.acl does, or by ACL SAVE, or a restart of Redis " +
		"forgets it: redis-cli ACL SETUSER", diag.Word(user)}
	for _, grant := range grants {
		words = append(words, diag.Word(grant))
	}
	return strings.Join(words, " ")
}

// Refused reports whether an error means that a right is missing.
func Refused(err error) bool { return redis.IsPermissionError(err) }

// Finding returns the finding for it; nil if nothing is missing. events is set if the channels count.
func (l *Lacking) Finding(events bool) *diag.Finding {
	grants := slices.Clone(l.Commands)
	if events {
		grants = append(grants, l.Channels...)
	}
	slices.Sort(grants)
	grants = slices.Compact(grants)
	f := &diag.Finding{Level: diag.Fail, Text: l.Name() + " lacks " + strings.Join(grants, " ")}
	switch {
	case len(l.Missing) > 0:
		f.Text = "the server has no " + strings.ToUpper(strings.ReplaceAll(strings.Join(l.Missing, ", "), "|", " "))
		f.Fix = "remove what renames it in redis.conf, rename-command, and restart Redis; use another service if a " +
			"managed one does not have it"
		if len(grants) > 0 {
			f.Text += "; and " + l.Name() + " lacks " + strings.Join(grants, " ")
			f.Fix += "; then run timerd doctor again, for the rights"
		}
	case len(grants) == 0:
		return nil
	case l.NoACL:
		f.Fix = "grant it by the service's own settings of users: this server has no ACL command"
	default:
		f.Fix = Grant(l.User, grants...)
	}
	if len(grants) > 0 && minor(grants) && len(l.Missing) == 0 {
		f.Level = diag.Warn
	}
	return f
}

// Name returns the user's name in a sentence. A server without ACL does not reveal it.
func (l *Lacking) Name() string {
	if l.NoACL {
		return "the user"
	}
	return "user " + l.User
}

// Stops reports whether timerd cannot fire because of the missing rights.
func (l *Lacking) Stops() bool {
	return len(l.Missing) > 0 || len(l.Commands) > 0 && !minor(l.Commands)
}

// minor reports whether timerd works without some rights.
func minor(grants []string) bool {
	return !slices.ContainsFunc(grants, func(grant string) bool {
		return grant != withoutConfig &&
			grant != withoutDelete
	})
}

// right is a command that timerd uses, in a harmless form.
type right struct {
	command string // in the form of ACL SETUSER: name or name|subcommand
	args    []any
	grant   string // for its keys or channel; "" if it has none
}

// rightsOn returns a function that makes rights for commands on a probe key; the key matches the pattern.
func rightsOn(probe, pattern string) func(command string, args ...any) right {
	return func(command string, args ...any) right {
		return right{command: command, args: append([]any{probe}, args...), grant: "~" + pattern}
	}
}

func (t right) line() []any {
	var line []any
	for word := range strings.SplitSeq(t.command, "|") {
		line = append(line, word)
	}
	return append(line, t.args...)
}

// generalRights are the rights without a key.
func generalRights() []right {
	return []right{
		{command: "ping"},
		{command: "info", args: []any{"server"}},
		{command: "time"},
		{command: "config|get", args: []any{"notify-keyspace-events"}},
		{command: "scan", args: []any{"0", "COUNT", "1"}},
		{command: "eval", args: []any{"return 1", "0"}},
		{command: "evalsha", args: []any{strings.Repeat("0", 40), "0"}},
		{command: "script|load", args: []any{"return 1"}},
		{command: "function|list", args: []any{"LIBRARYNAME", "timerd"}},
		{command: "function|load", args: []any{"no code"}},
		{command: "function|delete", args: []any{"timerd_doctor"}},
		{command: "fcall", args: []any{"timerd_doctor", "0"}},
		{command: "fcall_ro", args: []any{"timerd_doctor", "0"}},
		{command: "publish", args: []any{keys.WakeChannel, ""}, grant: "&" + keys.WakeChannel},
	}
}

// clusterRights are the further rights for a cluster. claimed is the server's channel for claims.
func clusterRights(claimed string) []right {
	return []right{
		{command: "cluster|slots"}, {command: "cluster|info"}, {command: "cluster|keyslot", args: []any{"k"}},
		{command: "asking"},
		{command: "spublish", args: []any{claimed, ""}, grant: "&" + keys.WakeChannel},
	}
}

// indexRights are the rights on timerd's own keys.
func indexRights(probe string) []right {
	on := rightsOn(probe, "timerd:*")
	return []right{
		on("hset", "f", ""), on("hsetnx", "f", ""), on("hget", "f"), on("hmget", "f"), on("hexists", "f"),
		on("hdel", "g"), on("hstrlen", "f"),
		on("hlen"), on("hkeys"), on("hgetall"), on("hscan", "0"),
		on("zadd", "0", "m"), on("zrange", "0", "0"), on("zrangebyscore", "0", "0"), on("zscore", "m"),
		on("zmscore", "m"), on("zcard"), on("zcount", "0", "0"),
		on("zscan", "0"), on("zrem", "n"), on("zremrangebyrank", "5", "5"), on("zremrangebyscore", "5", "5"),
		on("set", "", "PX", "1000"), on("get"), on("exists"), on("del"), on("unlink"),
		on("type"), on("pexpiretime"), on("getrange", "0", "1"), on("object|idletime"),
		on("memory|usage", "SAMPLES", "0"), on("pexpireat", "1"),
	}
}

// timerRights are the rights on the keys of a namespace.
func timerRights(probe, pattern string) []right {
	on := rightsOn(probe, pattern)
	return []right{on("set", "", "XX", "PX", "1000"), on("getrange", "0", "1")}
}

// channelRights are the rights to the listener's channels.
func channelRights(db int, namespaces keys.Namespaces) []right {
	on := func(command, channel, granted string) right {
		return right{command: command, args: []any{channel}, grant: "&" + granted}
	}
	canary := keys.KeyspacePrefix(db) + keys.CanaryPrefix
	all := []right{on("subscribe", canary+nonce(), canary+"*"), {command: "psubscribe", args: []any{canary + "*"}}}
	for _, channel := range []string{keys.ExpiredChannel(db), keys.WakeChannel} {
		all = append(all, on("subscribe", channel, channel))
	}
	for _, n := range namespaces {
		pattern := keys.KeyspacePattern(db, n)
		all = append(all, on("psubscribe", pattern, pattern))
	}
	return all
}

// nonce returns a unique name.
func nonce() string { return strings.ToLower(rand.Text()) }

// probeIn returns a key of a namespace without a timer.
func probeIn(n keys.Namespace) string {
	const some = "timerd-doctor"
	return keys.Key{App: cmp.Or(n.App, some), Module: cmp.Or(n.Module, some), Type: cmp.Or(n.Type, some),
		ID: nonce()}.String()
}

// Lacking tries every command of timerd, on keys and channels like its own, and returns the refused ones. Redis checks
// rights when it queues a command in a transaction. This transaction is discarded, so nothing changes, and no right to
// read rights is needed. The error means that the missing rights are unknown.
func (n Needs) Lacking(ctx context.Context, node *schedule.Node) (*Lacking, error) {
	conn := node.Server().Conn()
	defer func() { _ = conn.Close() }() // nothing is pending on it
	try := func(args ...any) *redis.Cmd {
		cmd := redis.NewCmd(ctx, args...)
		_ = conn.Process(ctx, cmd) // it has the error
		return cmd
	}
	l := &Lacking{User: UnknownUser}
	user, err := try("acl", "whoami").Text()
	if l.NoACL = isUnknown(err); err == nil {
		l.User = user
	}
	// The first two do nothing outside a transaction. Without them, an open transaction would not end.
	for _, command := range []string{"exec", "discard", "multi"} {
		err := try(command).Err()
		if err != nil && strings.Contains(err.Error(), "NOPERM ") { // of EXEC within another error
			l.Commands = append(l.Commands, "+"+command)
		} else if command == "multi" && err != nil {
			return nil, err
		}
		if command == "discard" && len(l.Commands) > 0 {
			break
		}
	}
	if len(l.Commands) > 0 {
		return l, nil
	}
	return l, n.queue(context.WithoutCancel(ctx), conn, node, l)
}

// queue queues the commands in conn's open transaction, then discards the transaction. The context must not end before
// the transaction is discarded, because conn is used again.
func (n Needs) queue(ctx context.Context, conn *redis.Conn, node *schedule.Node, l *Lacking) error {
	commands := slices.Concat(generalRights(), indexRights(node.AnyPartition().Prefix()+"doctor-"+nonce()))
	if node.Name() != "" {
		commands = append(commands, clusterRights(node.ClaimedChannel())...)
	}
	for _, in := range n.Namespaces {
		commands = append(commands, timerRights(probeIn(in), in.Glob())...)
	}
	all := len(commands)
	if n.Events {
		commands = append(commands, channelRights(node.Server().Options().DB, slices.Concat(n.Namespaces, n.Hears))...)
	}
	replies := make([]*redis.Cmd, len(commands))
	pipe := conn.Pipeline()
	for i, c := range commands {
		replies[i] = pipe.Do(ctx, c.line()...)
	}
	ended := pipe.Do(ctx, "discard")
	_, _ = pipe.Exec(ctx) // each reply has its own error
	for i, c := range commands {
		err := replies[i].Err()
		if isUnknown(err) && !minor([]string{"+" + c.command}) { // the checks of its settings report it
			l.Missing = append(l.Missing, c.command)
		}
		if !Refused(err) {
			continue
		}
		switch grant := c.granted(err); {
		case grant == "":
		case i < all:
			l.Commands = append(l.Commands, grant)
		default:
			l.Channels = append(l.Channels, grant)
		}
	}
	return ended.Err()
}

// isUnknown reports whether an error means that the server does not have a command, or not in this form.
func isUnknown(err error) bool {
	return redis.HasErrorPrefix(err, "unknown command") || redis.HasErrorPrefix(err, "unknown subcommand")
}

// granted returns the rights for ACL SETUSER after a refusal.
func (t right) granted(refusal error) string {
	if strings.Contains(refusal.Error(), "access database") {
		return anyDatabase
	}
	for _, of := range []string{"channels used", "access a channel", "keys used", "access a key"} {
		if strings.Contains(refusal.Error(), of) {
			return t.grant
		}
	}
	return "+" + t.command
}
