package deploy_test

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/deploy"
	"github.com/timerd-io/timerd/internal/devserver"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// TestRedisConf checks that the server has each setting of redis.conf.
func TestRedisConf(t *testing.T) {
	t.Parallel()
	got, err := testenv.Redis(t).Client().ConfigGet(t.Context(), "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	lines := 0
	for line := range strings.Lines(deploy.RedisConf()) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		lines++
		name, want, _ := strings.Cut(line, " ")
		want = strings.Trim(want, `"`)
		has, known := got[name]
		switch {
		case name == "port": // a port of the test's own
		case !known:
			t.Errorf("%s: the server does not know it", name)
		case name == "notify-keyspace-events":
			for _, flag := range want {
				if !strings.ContainsRune(has, flag) {
					t.Errorf("%s is %q, lacks %q", name, has, flag)
				}
			}
		case name == "client-output-buffer-limit":
			if limit := "pubsub 268435456 67108864 60"; !strings.Contains(has, limit) {
				t.Errorf("%s is %q, lacks %q", name, has, limit)
			}
		case has != want:
			t.Errorf("%s is %q, want %q", name, has, want)
		}
	}
	if lines < 10 {
		t.Errorf("redis.conf has %d settings", lines)
	}
}

const password = "secret"

// aclServer starts a server with users.acl, in which every user has got a password.
func aclServer(t *testing.T) *testenv.RedisServer {
	t.Helper()
	text, err := os.ReadFile("users.acl")
	if err != nil {
		t.Fatal(err)
	}
	return testenv.Redis(t, devserver.ACL(strings.ReplaceAll(string(text), " resetpass ", " >"+password+" ")))
}

func as(user string) func(*redis.Options) {
	return func(o *redis.Options) { o.Username, o.Password = user, password }
}

// luaCall finds the commands in the schedule's scripts.
var luaCall = regexp.MustCompile(`redis\.p?call\('([A-Z]+)'(?:, '([A-Z]+)')?`)

// luaCommands returns the commands that Lua files call, of all names that match some patterns but for those named.
func luaCommands(t *testing.T, patterns []string, without ...string) [][]string {
	t.Helper()
	var files []string
	for _, pattern := range patterns {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %q, %v", pattern, found, err)
		}
		files = append(files, found...)
	}
	var commands [][]string
	for _, file := range files {
		if slices.Contains(without, strings.TrimSuffix(filepath.Base(file), ".lua")) {
			continue
		}
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range luaCall.FindAllStringSubmatch(string(source), -1) {
			command := []string{m[1]}
			if m[1] == "OBJECT" || m[1] == "CLUSTER" || m[1] == "MEMORY" {
				command = append(command, m[2])
			}
			commands = append(commands, command)
		}
	}
	if len(commands) < 10 {
		t.Fatalf("found only %d commands in %v without %v", len(commands), files, without)
	}
	return commands
}

// dryRun asks the server whether the user may run a command on a key. It adds arguments up to the
// number that the command needs.
func dryRun(t *testing.T, admin *redis.Client, user, key string, command []string) {
	t.Helper()
	name := strings.ToLower(strings.Join(command, "|"))
	info, err := admin.Do(t.Context(), "COMMAND", "INFO", name).Slice()
	if err != nil || len(info) != 1 || info[0] == nil {
		t.Errorf("COMMAND INFO %s: %v, %v", name, info, err)
		return
	}
	details, _ := info[0].([]any)
	arity, _ := details[1].(int64)
	args := []any{"ACL", "DRYRUN", user}
	for _, word := range command {
		args = append(args, word)
	}
	for n := int64(len(command)); n < max(arity, -arity); n++ {
		args = append(args, key)
	}
	reply, err := admin.Do(t.Context(), args...).Text()
	if err != nil || reply != "OK" {
		t.Errorf("%s may not run %s on %s: %s %v", user, name, key, reply, err)
	}
}

func TestACLAllowsTheScriptsCommands(t *testing.T) {
	t.Parallel()
	admin := aclServer(t).Client(as("admin"))
	for _, command := range luaCommands(t, []string{"../schedule/lua/*/*.lua", "../internal/query/lua/*.lua"}) {
		if strings.HasSuffix(command[0], "PUBLISH") {
			continue // its argument is a channel: below
		}
		dryRun(t, admin, "timerd", "any:key:of:yours", command)
	}
	// These rooms only timerd calls; the other ones are of the function library too.
	library := []string{"../schedule/lua/functions/*.lua", "../schedule/lua/lib/*.lua"}
	rooms := []string{"balance", "losses", "restored", "held", "noted", "batch", "free", "quick", "ripe", "special",
		"taken"}
	for _, command := range luaCommands(t, library, rooms...) {
		if strings.HasSuffix(command[0], "PUBLISH") {
			continue
		}
		for _, key := range []string{"app1:trans:notice:1", keys.Single.Due()} {
			dryRun(t, admin, "producer", key, command)
		}
	}
	for _, user := range []string{"timerd", "producer"} {
		dryRun(t, admin, user, keys.WakeChannel, []string{"PUBLISH"})
		dryRun(t, admin, user, keys.ClaimedChannel("hhhhhh"), []string{"SPUBLISH"})
	}
}

// Producers set plain timers with any command for strings. A server older than a command has no name for it, which
// would make the file unreadable; it has the category.
func TestACLAllowsPlainTimers(t *testing.T) {
	t.Parallel()
	producer := aclServer(t).Client(as("producer"))
	for _, command := range []string{
		"SET app1:a:b:1 v PX 60000", "SETEX app1:a:b:2 60 v", "PSETEX app1:a:b:2 60000 v", "GETEX app1:a:b:2 EX 60",
		"MSETEX 1 app1:a:b:3 v EX 60",
	} {
		var args []any
		for word := range strings.FieldsSeq(command) {
			args = append(args, word)
		}
		if err := producer.Do(t.Context(), args...).Err(); err != nil && !redis.HasErrorPrefix(err, "unknown command") {
			t.Errorf("%s: %v", command, err)
		}
	}
	if err := producer.Do(t.Context(), "SETEX", "app2:a:b:1", 60, "v").Err(); !redis.IsPermissionError(err) {
		t.Errorf("another's timer: %v", err)
	}
}

func TestACLAllowsTimerdsCommands(t *testing.T) {
	t.Parallel()
	server := aclServer(t)
	admin := server.Client(as("admin"))
	for _, command := range []string{
		"PING", "SELECT", "CLIENT|SETNAME", "CLIENT|ID", "INFO", "CONFIG|GET", "ROLE", "TIME", "SCAN",
		"SCRIPT|LOAD", "FUNCTION|LOAD", "FUNCTION|LIST", "MULTI", "EXEC", "HMGET", "HGETALL", "ZCARD", "ZCOUNT", "WAIT",
		"CLUSTER|SLOTS", "CLUSTER|SHARDS", "CLUSTER|NODES", "CLUSTER|KEYSLOT", "READONLY", "ASKING",
	} {
		dryRun(t, admin, "timerd", "1", strings.Split(command, "|"))
	}
	all, err := keys.ParseNamespace("*")
	if err != nil {
		t.Fatal(err)
	}
	// A pattern has to be in the ACL letter by letter: Redis does not match patterns with patterns.
	sub := server.Client(as("timerd")).PSubscribe(t.Context(), keys.KeyspacePattern(0, all))
	if err := sub.Subscribe(t.Context(), keys.ExpiredChannel(0), keys.WakeChannel); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if msg, err := sub.Receive(t.Context()); err != nil {
			t.Fatalf("subscribing as timerd: %v, %v", msg, err)
		}
	}
	if err := sub.Close(); err != nil {
		t.Error(err)
	}
}

// aclSchedule returns a schedule with timerd's rights, its only node, and clients with each user's rights.
func aclSchedule(t *testing.T) (s *schedule.Schedule, node *schedule.Node, timerd, producer *redis.Client) {
	t.Helper()
	server := aclServer(t)
	timerd, producer = server.Client(as("timerd")), server.Client(as("producer"))
	s = schedule.New(timerd, schedule.DefaultMaxPayload)
	if _, err := s.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	nodes, err := s.Nodes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s, nodes[0], timerd, producer
}

// TestACLCarriesATimer takes a timer through the schedule with the two users' rights.
func TestACLCarriesATimer(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s, node, _, producer := aclSchedule(t)
	const key = "app1:trans:notice:1"
	for _, k := range []string{key, key + "-cancelled"} {
		if err := producer.FCall(ctx, "timer_set", []string{k}, "payload", "PX", "20").Err(); err != nil {
			t.Fatal(err)
		}
	}
	if err := producer.FCallRO(ctx, "timer_get", []string{key}).Err(); err != nil && !errors.Is(err, redis.Nil) {
		t.Error(err)
	}
	if err := producer.FCall(ctx, "timer_cancel", []string{key + "-cancelled"}).Err(); err != nil {
		t.Error(err)
	}
	if _, err := node.Observe(ctx, []schedule.Hint{{Kind: schedule.Touched, Key: key}}, time.Time{}); err != nil {
		t.Error(err)
	}
	var claimed []schedule.Firing
	testenv.Eventually(t, time.Minute, func() bool {
		c := node.Claim(ctx, []schedule.ClaimRequest{{Partition: keys.Single}}, 10*time.Second)[0]
		if c.Err != nil {
			t.Fatal(c.Err)
		}
		claimed = append(claimed, c.Firings...)
		return len(claimed) > 0
	}, "the claim of "+key)
	if got := claimed[0].Key.String(); got != key || len(claimed) != 1 {
		t.Errorf("claimed %d firings, the first of %s; want 1 of %s", len(claimed), got, key)
	}
	if err := s.Release(ctx, schedule.Outcomes(schedule.OutcomeGivenBack, claimed...)); err != nil {
		t.Error(err)
	}
	if err := s.Settle(ctx, schedule.Outcomes(schedule.OutcomeFired, claimed...)); err != nil {
		t.Error(err)
	}
	node.StopHearing()
	audit, err := node.BeginAudit(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := audit.Partitions(ctx, []keys.Partition{keys.Single}, 10, 0, nil); err != nil {
		t.Error(err)
	}
}

// TestACLCarriesARepetition plans and arms occurrences with the two users' rights.
func TestACLCarriesARepetition(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s, node, timerd, producer := aclSchedule(t)
	for key, by := range map[string][]any{
		"app1:trans:notice:1": {"p", "EVERY", 30_000, "FROM", timerd.Time(ctx).Val().UnixMilli() + 200},
		"app1:trans:notice:2": {"p", "CRON", "@yearly", "TZ", "Asia/Kathmandu"},
	} {
		if err := producer.FCall(ctx, "timer_repeat", []string{key}, by...).Err(); err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, time.Minute, func() bool {
			c := node.Claim(ctx, []schedule.ClaimRequest{{Partition: keys.Single}}, 10*time.Second)[0]
			if err := errors.Join(c.Err, s.Settle(ctx, schedule.Outcomes(schedule.OutcomeFired,
				c.Firings...))); err != nil {
				t.Fatal(err)
			}
			return len(c.Firings) > 0 || by[1] == "CRON" && timerd.PTTL(ctx, key).Val() > 0
		}, "an occurrence of "+key)
		if ttl := timerd.PTTL(ctx, key).Val(); ttl <= 0 {
			t.Errorf("the next occurrence of %s has the TTL %v", key, ttl)
		}
		if got, err := producer.FCall(ctx, "timer_cancel", []string{key}).Text(); err != nil || got != "cancelled" {
			t.Errorf("timer_cancel of %s: %s, %v", key, got, err)
		}
	}
}

func TestACLRefuses(t *testing.T) {
	t.Parallel()
	server := aclServer(t)
	ctx := t.Context()
	if err := server.Client().Ping(ctx).Err(); err == nil {
		t.Error("the default user may log in")
	}
	producer, timerd := server.Client(as("producer")), server.Client(as("timerd"))
	if err := producer.Set(ctx, "app1:trans:notice:1", "v", 0).Err(); err != nil {
		t.Errorf("producer may not set a key of its application: %v", err)
	}
	for what, err := range map[string]error{
		"producer: SET of another application's key": producer.Set(ctx, "app2:trans:notice:1", "v", 0).Err(),
		"producer: FUNCTION LOAD":                    producer.FunctionLoad(ctx, "#!lua name=x\n").Err(),
		"producer: EVAL":                             producer.Eval(ctx, "return 1", nil).Err(),
		"producer: PUBLISH":                          producer.Publish(ctx, "news", "x").Err(),
		"producer: FLUSHALL":                         producer.FlushAll(ctx).Err(),
		"timerd: FLUSHALL":                           timerd.FlushAll(ctx).Err(),
		"timerd: CONFIG SET":                         timerd.ConfigSet(ctx, "hz", "10").Err(),
		"timerd: CLIENT KILL":                        timerd.ClientKillByFilter(ctx, "TYPE", "pubsub").Err(),
		"timerd: ACL SETUSER":                        timerd.ACLSetUser(ctx, "x", "on").Err(),
	} {
		if err == nil || !strings.HasPrefix(err.Error(), "NOPERM") {
			t.Errorf("%s: %v, want NOPERM", what, err)
		}
	}
}

// TestACLHasNoPasswords keeps the shipped file from letting anybody in.
func TestACLHasNoPasswords(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("users.acl")
	if err != nil {
		t.Fatal(err)
	}
	server := testenv.Redis(t, devserver.ACL(string(text)))
	for _, user := range []string{"admin", "timerd", "producer"} {
		for _, pass := range []string{"", "x", password} {
			c := server.Client(func(o *redis.Options) { o.Username, o.Password = user, pass })
			if err := c.Ping(t.Context()).Err(); err == nil {
				t.Errorf("%s logs in with the password %q", user, pass)
			}
		}
	}
}

func TestNATSConf(t *testing.T) {
	t.Parallel()
	opts, err := server.ProcessConfigFile("nats.conf")
	if err != nil {
		t.Fatal(err)
	}
	if !opts.JetStream || !opts.SyncAlways || opts.StoreDir == "" {
		t.Errorf("JetStream %t, sync always %t, store %q", opts.JetStream, opts.SyncAlways, opts.StoreDir)
	}
	if opts.Host != "127.0.0.1" || opts.HTTPHost != "127.0.0.1" {
		t.Errorf("listens on %s, monitoring on %s; want the loopback", opts.Host, opts.HTTPHost)
	}
	if want := int32(6*256<<10 + 64<<10); opts.MaxPayload < want {
		t.Errorf("max_payload is %d, want at least %d: the largest payload, escaped", opts.MaxPayload, want)
	}
	started := testenv.NATS(t, func(o *server.Options) {
		o.SyncAlways, o.MaxPayload, o.JetStreamMaxStore = opts.SyncAlways, opts.MaxPayload, opts.JetStreamMaxStore
	})
	if _, err := started.JetStream().AccountInfo(t.Context()); err != nil {
		t.Error(errors.Join(errors.New("JetStream with the settings of nats.conf"), err))
	}
}
