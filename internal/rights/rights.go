// Package rights tells what timerd's user may not do in Redis, and what to grant.
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

// Needs is what timerd is to be allowed on a server of Redis.
type Needs struct {
	Namespaces keys.Namespaces // whose keys it touches; none for its index alone
	Events     bool            // it hears keyspace events
	Hears      keys.Namespaces // whose events it hears besides
}

// Lacking is what timerd's user is not allowed, and what its server does not have.
type Lacking struct {
	User     string
	NoACL    bool     // the server has no command to grant rights with
	Commands []string // and keys, each as ACL SETUSER grants it
	Channels []string // what it takes to hear keyspace events, likewise
	Missing  []string // commands that the server does not have for any user, as rename-command can take them away: name or name|subcommand
}

// UnknownUser is the User of a Lacking whose name Redis does not tell.
const UnknownUser = "<user>"

const (
	// withoutConfig is a right without which timerd works, and cannot look at what Redis is set to; withoutDelete one
	// without which the libraries of earlier versions stay.
	withoutConfig, withoutDelete = "+config|get", "+function|delete"
	// anyDatabase grants every database of a Valkey whose ACLs have databases. db= would replace the user's own.
	anyDatabase = "alldbs"
)

// Grant returns the fix that grants rights to a user. ACL SETUSER alone is forgotten when Redis starts again.
func Grant(user string, grants ...string) string {
	words := []string{"grant it in the ACL file too, as deploy/users.acl does, or by ACL SAVE, or a restart of Redis forgets it: redis-cli ACL SETUSER", diag.Word(user)}
	for _, grant := range grants {
		words = append(words, diag.Word(grant))
	}
	return strings.Join(words, " ")
}

// Refused reports whether an error means that a right is missing.
func Refused(err error) bool { return redis.IsPermissionError(err) }

// Finding returns what is told of it; nil if nothing lacks. events says whether the channels count.
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
		f.Fix = "remove what renames it in redis.conf, rename-command, and restart Redis; use another service if a managed one does not have it"
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

// Name returns the user's name in a sentence. A server without ACL does not tell it.
func (l *Lacking) Name() string {
	if l.NoACL {
		return "the user"
	}
	return "user " + l.User
}

// Stops reports whether timerd cannot fire without what is lacking.
func (l *Lacking) Stops() bool {
	return len(l.Missing) > 0 || len(l.Commands) > 0 && !minor(l.Commands)
}

// minor reports whether timerd works without some rights.
func minor(grants []string) bool {
	return !slices.ContainsFunc(grants, func(grant string) bool { return grant != withoutConfig && grant != withoutDelete })
}

// right is a command that timerd runs, in a form that does no harm if it is run.
type right struct {
	command string // as ACL SETUSER takes it: name or name|subcommand
	args    []any
	grant   string // for what it is run on: keys or a channel; "" if there is none
}

// rightsOn returns what makes the right to run a command on a probe, whose key matches the pattern.
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

// generalRights are those that concern no key.
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

// clusterRights are those that a cluster needs besides. Claims are told on a channel of the server.
func clusterRights(claimed string) []right {
	return []right{
		{command: "cluster|slots"}, {command: "cluster|info"}, {command: "cluster|keyslot", args: []any{"k"}}, {command: "asking"},
		{command: "spublish", args: []any{claimed, ""}, grant: "&" + keys.WakeChannel},
	}
}

// indexRights are those on timerd's own keys.
func indexRights(probe string) []right {
	on := rightsOn(probe, "timerd:*")
	return []right{
		on("hset", "f", ""), on("hsetnx", "f", ""), on("hget", "f"), on("hmget", "f"), on("hexists", "f"), on("hdel", "g"), on("hstrlen", "f"),
		on("hlen"), on("hkeys"), on("hgetall"), on("hscan", "0"),
		on("zadd", "0", "m"), on("zrange", "0", "0"), on("zrangebyscore", "0", "0"), on("zscore", "m"), on("zmscore", "m"), on("zcard"), on("zcount", "0", "0"),
		on("zscan", "0"), on("zrem", "n"), on("zremrangebyrank", "5", "5"), on("zremrangebyscore", "5", "5"),
		on("set", "", "PX", "1000"), on("get"), on("exists"), on("del"), on("unlink"),
		on("type"), on("pexpiretime"), on("getrange", "0", "1"), on("object|idletime"), on("memory|usage", "SAMPLES", "0"), on("pexpireat", "1"),
	}
}

// timerRights are those on the keys of a namespace.
func timerRights(probe, pattern string) []right {
	on := rightsOn(probe, pattern)
	return []right{on("set", "", "XX", "PX", "1000"), on("getrange", "0", "1")}
}

// channelRights are those to hear what the listener hears.
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

// nonce returns a name that nobody else uses.
func nonce() string { return strings.ToLower(rand.Text()) }

// probeIn returns a key of a namespace that no timer has.
func probeIn(n keys.Namespace) string {
	const some = "timerd-doctor"
	return keys.Key{App: cmp.Or(n.App, some), Module: cmp.Or(n.Module, some), Type: cmp.Or(n.Type, some), ID: nonce()}.String()
}

// Lacking tries every command that timerd runs, on keys and channels like those that it runs them on, and returns what
// is refused. Redis looks at rights when it puts a command into a transaction. This one is given up, so nothing
// changes, and no right to look at rights is needed. The error says that the missing rights are not known.
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
	// The first two do nothing outside a transaction. Without them, one that was begun would not end.
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

// queue puts the commands into the transaction that conn has begun, and gives it up. The context must not end before:
// the connection is used again.
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
		if isUnknown(err) && !minor([]string{"+" + c.command}) { // the checks of its settings tell
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

// isUnknown reports whether an error says that the server does not have a command, or not in this form.
func isUnknown(err error) bool {
	return redis.HasErrorPrefix(err, "unknown command") || redis.HasErrorPrefix(err, "unknown subcommand")
}

// granted returns what ACL SETUSER must grant, after a refusal.
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
