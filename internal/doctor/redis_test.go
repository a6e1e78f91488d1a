package doctor_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/devserver"
	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/doctor"
	"github.com/timerd-io/timerd/internal/rights"
	"github.com/timerd-io/timerd/internal/status"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

func checkRedis(t *testing.T, rdb *redis.Client, configure ...func(*doctor.Redis)) []diag.Finding {
	t.Helper()
	nodes, err := schedule.New(rdb, maxPayload).Nodes(t.Context())
	if len(nodes) != 1 { // doctor must report an error beside it
		t.Fatal(err)
	}
	d := doctor.NewRedis(nodes[0])
	d.MaxPayload = maxPayload
	d.Namespaces = namespaces(t, "app1:trans,shop")
	for _, f := range configure {
		f(d)
	}
	return append(d.Check(t.Context()), rightsOf(t, rdb, d)...)
}

// rightsOf returns the finding on the user's rights.
func rightsOf(t *testing.T, rdb *redis.Client, d *doctor.Redis) diag.Findings {
	t.Helper()
	from := status.Sources{Schedule: schedule.New(rdb, maxPayload),
		Needs: rights.Needs{Namespaces: d.Namespaces, Events: d.Events}}
	return slices.DeleteFunc(from.Gather(t.Context()).Found,
		func(f diag.Finding) bool { return f.Check != diag.CheckRights })
}

func TestRedisAsShipped(t *testing.T) {
	t.Parallel()
	s := testenv.Redis(t)
	rdb := s.Client()
	findings := checkRedis(t, rdb)
	wants(t, findings, "function library", diag.Warn, "not loaded yet", "start timerd once")
	if _, err := schedule.New(rdb, maxPayload).Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	findings = checkRedis(t, rdb)
	for _, f := range findings {
		if f.Level != diag.OK {
			t.Errorf("%+v", f)
		}
	}
	for check, text := range map[string]string{
		"redis version": s.Version(), "redis role": "master", "keyspace events": "notify-keyspace-events is",
		"persistence": "append-only file", "eviction": "noeviction", "lazy freeing": "another thread",
		"redis rights":     "user default may do all that timerd does on its index and in app1:trans,shop",
		"function library": "of this version",
	} {
		wants(t, findings, check, diag.OK, text)
	}
	if left, err := rdb.Keys(t.Context(), "*").Result(); err != nil ||
		!slices.Equal(left, []string{keys.Single.Database()}) {
		t.Errorf("keys that are left: %q, %v", left, err)
	}
}

func TestRedisMisconfigured(t *testing.T) {
	t.Parallel()
	s := testenv.Redis(t, devserver.Directive("appendonly", "no"), devserver.Directive("maxmemory", "100mb"))
	rdb := s.Client()
	set := func(name, value string) {
		t.Helper()
		if err := rdb.ConfigSet(t.Context(), name, value).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := schedule.New(rdb, maxPayload+1).Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	set("notify-keyspace-events", "Ex")
	set("maxmemory-policy", "allkeys-lru")
	set("lazyfree-lazy-expire", "no")
	findings := checkRedis(t, rdb)
	wants(t, findings, "keyspace events", diag.Warn, `is "xE" and lacks Kg$he`, "timerd, which may, switches them on",
		"set it here and in redis.conf, or in the parameter group of a managed Redis: redis-cli CONFIG SET "+
			"notify-keyspace-events 'xEKg$he'")
	set("notify-keyspace-events", "KEmxe") // m is somebody else's
	wants(t, checkRedis(t, rdb), "keyspace events", diag.Warn, "lacks g$h", "m", "g$h'")
	wants(t, findings, "persistence", diag.Fail, "a restart loses every timer", "appendonly yes")
	wants(t, findings, "lazy freeing", diag.Warn, "a large hash that runs out", "CONFIG SET lazyfree-lazy-expire yes")
	wants(t, findings, "eviction", diag.Fail, "allkeys-lru", "CONFIG SET maxmemory-policy noeviction")
	wants(t, findings, "function library", diag.Warn, fmt.Sprintf(
		"its payload limit is %d bytes, and TIMERD_MAX_PAYLOAD is %d", maxPayload+1, maxPayload))

	set("notify-keyspace-events", "KEg$xe")
	set("save", "3600 1")
	set("maxmemory-policy", "volatile-ttl")
	findings = checkRedis(t, rdb)
	wants(t, findings, "keyspace events", diag.Warn, "lacks h: timerd, which may")
	wants(t, findings, "persistence", diag.Warn, "snapshots only (save 3600 1)")
	wants(t, findings, "eviction", diag.Warn, "volatile-ttl")

	set("maxmemory-policy", "noeviction")
	set("maxmemory", "1mb")
	findings = checkRedis(t, rdb, func(d *doctor.Redis) { d.Events = false })
	wants(t, findings, "keyspace events", diag.OK, "TIMERD_KEYSPACE_EVENTS=off")
	wants(t, findings, "eviction", diag.Fail, "bytes are used: Redis refuses new timers", "raise maxmemory")

	set("maxmemory", "0")
	set("maxmemory-policy", "allkeys-lru")
	wants(t, checkRedis(t, rdb), "eviction", diag.Warn, "once a maxmemory is set")
}

func TestRedisSynced(t *testing.T) {
	t.Parallel()
	s := testenv.Redis(t, devserver.Directive("appendfsync", "no"))
	wants(t, checkRedis(t, s.Client()), "persistence", diag.Warn, "synced by the operating system")
	if err := s.Client().ConfigSet(t.Context(), "appendfsync", "always").Err(); err != nil {
		t.Fatal(err)
	}
	wants(t, checkRedis(t, s.Client()), "persistence", diag.OK, "every write is synced")
}

func TestRedisReplicaAndCluster(t *testing.T) {
	t.Parallel()
	master := testenv.Redis(t)
	host, port, _ := strings.Cut(master.Addr(), ":")
	replica := testenv.Redis(t, devserver.Directive("replicaof", host, port))
	wants(t, checkRedis(t, replica.Client()), "redis role", diag.Fail, "replica of "+master.Addr(),
		"TIMERD_REDIS_MODE=sentinel")
	cluster := testenv.Redis(t, devserver.Directive("cluster-enabled", "yes"))
	wants(t, checkRedis(t, cluster.Client()), "redis cluster", diag.Fail, "Redis Cluster")
}

// The ACL example that is shipped allows all that is tried, for its database and
// its namespaces; taking one thing away is found, with the command that fixes it.
func TestRedisRights(t *testing.T) {
	t.Parallel()
	file, err := os.ReadFile("../../deploy/users.acl")
	if err != nil {
		t.Fatal(err)
	}
	s := testenv.Redis(t, devserver.ACL(strings.ReplaceAll(string(file), "resetpass", "nopass")))
	as := func(user string) *redis.Client {
		return s.Client(func(o *redis.Options) { o.Username, o.Password = user, "any" })
	}
	all := func(d *doctor.Redis) { d.Namespaces = namespaces(t, "*") }
	admin, timerd := as("admin"), as("timerd")
	findings := checkRedis(t, timerd, all)
	wants(t, findings, "redis rights", diag.OK, "user timerd may do all")

	for _, test := range []struct{ take, want string }{
		{"-zrangebyscore", "ACL SETUSER timerd +zrangebyscore"},
		{"-config|get -ping", "'+config|get' +ping"},
		{"-exec", "+exec"},
		{"-multi", "+multi"},
		{"-object|idletime", "+object|idletime"},
		{"-function|load -evalsha", "+evalsha '+function|load'"},
		{"-psubscribe", "+psubscribe"},
		{"resetkeys ~timerd:*", "'~*:*:*:*'"},
		{"resetkeys ~app:*", "~timerd:*"},
		{"resetchannels &timerd:wake &__keyspace@0__:*:*:*:*",
			"'&__keyevent@0__:expired' '&__keyspace@0__:timerd:canary:*'"},
		{"resetchannels &__keyevent@0__:expired &__keyspace@0__:*", "'&__keyspace@0__:*:*:*:*' '&timerd:wake'"},
	} {
		const allowAll = "resetkeys ~* resetchannels &* +@all "
		change := []any{"ACL", "SETUSER", "timerd"}
		for word := range strings.FieldsSeq(allowAll + test.take) {
			change = append(change, word)
		}
		if err := admin.Do(t.Context(), change...).Err(); err != nil {
			t.Fatal(err)
		}
		wants(t, checkRedis(t, as("timerd"), all), "redis rights", diag.Fail, test.want)
	}
}

// Where CONFIG GET is not allowed, as in most managed services, events are tried.
func TestRedisEventsWithoutConfigGet(t *testing.T) {
	t.Parallel()
	s := testenv.Redis(t, devserver.ACL("user default on nopass ~* &* +@all\nuser app on nopass ~* &* +@all -config\n"))
	app := s.Client(func(o *redis.Options) { o.Username, o.Password = "app", "any" })
	findings := checkRedis(t, app)
	wants(t, findings, "keyspace events", diag.OK, "set, expire and expired arrive")
	wants(t, findings, "redis rights", diag.Warn, "+config|get")
	if err := s.Client().ConfigSet(t.Context(), "notify-keyspace-events", "Kgx").Err(); err != nil {
		t.Fatal(err)
	}
	wants(t, checkRedis(t, app), "keyspace events", diag.Fail, "no event for expired (x), set ($)")
	if err := s.Client().Do(t.Context(), "ACL", "SETUSER", "app", "-info").Err(); err != nil {
		t.Fatal(err)
	}
	findings = checkRedis(t, app)
	wants(t, findings, "redis version", diag.Fail, "INFO")
	wants(t, findings, "redis rights", diag.Fail, "+config|get +info")
}

// Managed services have no CONFIG: then they set events up by themselves, or never.
func TestRedisWithoutConfig(t *testing.T) {
	t.Parallel()
	s := testenv.Redis(t, devserver.Directive("rename-command", "CONFIG", ""),
		devserver.Directive("notify-keyspace-events", ""))
	findings := checkRedis(t, s.Client())
	wants(t, findings, "keyspace events", diag.Fail, "the server has no CONFIG GET", "the service's own setting",
		"TIMERD_KEYSPACE_EVENTS=off")
	wants(t, findings, "redis rights", diag.OK, "may do all")
	for _, f := range findings {
		if strings.Contains(f.Fix, "redis-cli CONFIG") && f.Check == "keyspace events" {
			t.Errorf("a command that the server does not have: %s", f.Fix)
		}
	}
}

// Valkey 9.1 runs without its module for Lua too. A library that is missing there is none that a timerd loads.
func TestRedisWithoutLua(t *testing.T) {
	t.Parallel()
	rdb := testenv.Redis(t, devserver.Directive("enable-module-command", "yes")).Client()
	unloaded := rdb.Do(t.Context(), "MODULE", "UNLOAD", "lua").Err() == nil // false where Lua is no module
	findings := diag.Findings(checkRedis(t, rdb))
	if findings.Has(diag.Warn, "function library") == unloaded {
		t.Errorf("without Lua: %v, and found:\n%s", unloaded, describe(findings))
	}
	node := status.Sources{Schedule: schedule.New(rdb, maxPayload)}.Gather(t.Context())
	if text := describe(node.Problems); strings.Contains(text, "it has no Lua") != unloaded ||
		strings.Contains(text, "deploy/users.acl") {
		t.Errorf("without Lua: %v, and told:\n%s", unloaded, text)
	}
}

// A setting that timerd switches on itself is no failure; one that it may not change is.
func TestRedisEventsWithoutConfigSet(t *testing.T) {
	t.Parallel()
	s := testenv.Redis(t,
		devserver.ACL("user default on nopass ~* &* +@all\nuser app on nopass ~* &* +@all -config|set\n"))
	app := s.Client(func(o *redis.Options) { o.Username, o.Password = "app", "any" })
	for flags, want := range map[string]struct {
		level diag.Level
		text  string
	}{
		"":         {diag.Fail, "timerd may not switch them on"},
		"Ex":       {diag.Fail, "lacks Kg$he"},
		"KEg$xe":   {diag.Warn, "later HSETs"},
		"KEg$hxet": {diag.OK, "notify-keyspace-events is"},
	} {
		if err := s.Client().ConfigSet(t.Context(), "notify-keyspace-events", flags).Err(); err != nil {
			t.Fatal(err)
		}
		wants(t, checkRedis(t, app), "keyspace events", want.level, want.text)
		if after := s.Client().ConfigGet(t.Context(), "notify-keyspace-events").Val()["notify-keyspace-events"]; len(
			after) != len(flags) {
			t.Errorf("the flags %q became %q", flags, after)
		}
	}
}
