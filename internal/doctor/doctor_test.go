package doctor_test

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/devserver"
	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/doctor"
	"github.com/timerd-io/timerd/internal/rights"
	"github.com/timerd-io/timerd/internal/status"
	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

const maxPayload = 1000

// wants checks the findings of one check: "level text fix" of each, in parts.
func wants(t *testing.T, findings []diag.Finding, check string, level diag.Level, texts ...string) {
	t.Helper()
	for _, f := range findings {
		all := f.Text + " | " + f.Fix
		if f.Check != check || f.Level != level {
			continue
		}
		if !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(all, text) }) {
			if level != diag.OK && f.Fix == "" {
				t.Errorf("%s: no fix in %+v", check, f)
			}
			return
		}
	}
	t.Errorf("want %s of %s with %q, got:\n%s", level, check, texts, describe(findings))
}

func describe(findings []diag.Finding) string {
	var b strings.Builder
	for _, f := range findings {
		b.WriteString("\t" + string(f.Level) + " " + f.Check + ": " + f.Text + " | " + f.Fix + "\n")
	}
	return b.String()
}

func namespaces(t *testing.T, s string) keys.Namespaces {
	t.Helper()
	ns, err := keys.ParseNamespaces(s)
	if err != nil {
		t.Fatal(err)
	}
	return ns
}

func checkRedis(t *testing.T, rdb *redis.Client, configure ...func(*doctor.Redis)) []diag.Finding {
	t.Helper()
	nodes, err := schedule.New(rdb, maxPayload).Nodes(t.Context())
	if len(nodes) != 1 { // an error beside it is what doctor is to tell
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

// rightsOf returns what is found of the rights of the user.
func rightsOf(t *testing.T, rdb *redis.Client, d *doctor.Redis) diag.Findings {
	t.Helper()
	from := status.Sources{Schedule: schedule.New(rdb, maxPayload), Needs: rights.Needs{Namespaces: d.Namespaces, Events: d.Events}}
	return slices.DeleteFunc(from.Gather(t.Context()).Found, func(f diag.Finding) bool { return f.Check != diag.CheckRights })
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
		"persistence": "append-only file", "eviction": "noeviction", "lazy freeing": "another thread", "redis rights": "user default may do all that timerd does on its index and in app1:trans,shop",
		"function library": "of this version",
	} {
		wants(t, findings, check, diag.OK, text)
	}
	if left, err := rdb.Keys(t.Context(), "*").Result(); err != nil || !slices.Equal(left, []string{keys.Single.Database()}) {
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
	wants(t, findings, "keyspace events", diag.Warn, `is "xE" and lacks Kg$he`, "timerd, which may, switches them on", "set it here and in redis.conf, or in the parameter group of a managed Redis: redis-cli CONFIG SET notify-keyspace-events 'xEKg$he'")
	set("notify-keyspace-events", "KEmxe") // m is somebody else's
	wants(t, checkRedis(t, rdb), "keyspace events", diag.Warn, "lacks g$h", "m", "g$h'")
	wants(t, findings, "persistence", diag.Fail, "a restart loses every timer", "appendonly yes")
	wants(t, findings, "lazy freeing", diag.Warn, "a large hash that runs out", "CONFIG SET lazyfree-lazy-expire yes")
	wants(t, findings, "eviction", diag.Fail, "allkeys-lru", "CONFIG SET maxmemory-policy noeviction")
	wants(t, findings, "function library", diag.Warn, fmt.Sprintf("its payload limit is %d bytes, and TIMERD_MAX_PAYLOAD is %d", maxPayload+1, maxPayload))

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
	wants(t, checkRedis(t, replica.Client()), "redis role", diag.Fail, "replica of "+master.Addr(), "TIMERD_REDIS_MODE=sentinel")
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
		{"resetchannels &timerd:wake &__keyspace@0__:*:*:*:*", "'&__keyevent@0__:expired' '&__keyspace@0__:timerd:canary:*'"},
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
	s := testenv.Redis(t, devserver.Directive("rename-command", "CONFIG", ""), devserver.Directive("notify-keyspace-events", ""))
	findings := checkRedis(t, s.Client())
	wants(t, findings, "keyspace events", diag.Fail, "the server has no CONFIG GET", "the service's own setting", "TIMERD_KEYSPACE_EVENTS=off")
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
	if text := describe(node.Problems); strings.Contains(text, "it has no Lua") != unloaded || strings.Contains(text, "deploy/users.acl") {
		t.Errorf("without Lua: %v, and told:\n%s", unloaded, text)
	}
}

// What timerd would switch on itself is no failure; what it may not, is.
func TestRedisEventsWithoutConfigSet(t *testing.T) {
	t.Parallel()
	s := testenv.Redis(t, devserver.ACL("user default on nopass ~* &* +@all\nuser app on nopass ~* &* +@all -config|set\n"))
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
		if after := s.Client().ConfigGet(t.Context(), "notify-keyspace-events").Val()["notify-keyspace-events"]; len(after) != len(flags) {
			t.Errorf("the flags %q became %q", flags, after)
		}
	}
}

func checkNATS(t *testing.T, js jetstream.JetStream, limit int) []diag.Finding {
	t.Helper()
	conf := streams.Config{MinDuplicates: time.Minute}
	state := status.Sources{JetStream: js, Streams: conf}.Gather(t.Context()).Found
	return append(doctor.NewNATS(js, conf, limit).Check(t.Context(), state), state...)
}

func TestNATS(t *testing.T) {
	t.Parallel()
	s := testenv.NATS(t)
	js := s.JetStream()
	findings := checkNATS(t, js, maxPayload)
	wants(t, findings, "nats version", diag.OK, "nats-server "+server.VERSION)
	wants(t, findings, "jetstream", diag.OK, "enabled")
	wants(t, findings, "nats limits", diag.OK, "max_payload is 1048576")
	wants(t, findings, "streams", diag.Warn, "there is no stream TIMERS_RETRY", "start timerd, which makes it")

	if err := streams.Ensure(t.Context(), js, streams.Config{}); err != nil {
		t.Fatal(err)
	}
	findings = checkNATS(t, js, maxPayload)
	wants(t, findings, "streams", diag.OK, "TIMERS, TIMERS_RETRY and TIMERS_DEAD fit; duplicate window at least 1m")
	wants(t, findings, "nats clock", diag.OK, "that of NATS agrees")
	wants(t, checkNATS(t, js, 1<<20), "nats limits", diag.Warn, "fire without data", "max_payload: ")

	if err := js.DeleteStream(t.Context(), "TIMERS"); err != nil {
		t.Fatal(err)
	}
	bad := jetstream.StreamConfig{Name: "TIMERS", Subjects: []string{"timers.fired.>"}, Duplicates: 10 * time.Second, Storage: jetstream.MemoryStorage}
	if _, err := js.CreateStream(t.Context(), bad); err != nil {
		t.Fatal(err)
	}
	findings = checkNATS(t, js, maxPayload)
	wants(t, findings, "streams", diag.Fail, "TIMERS: its duplicate window is 10s", "nats stream edit TIMERS --dupe-window")
	wants(t, findings, "streams", diag.Warn, "TIMERS: it is kept in memory")
}

// A stream that one server of a cluster keeps alone is told of.
func TestNATSClusterWithOneReplica(t *testing.T) {
	t.Parallel()
	js := testenv.NATSCluster(t)[0].JetStream()
	testenv.Eventually(t, time.Minute, func() error { return streams.Ensure(t.Context(), js, streams.Config{}) }, "JetStream in the cluster")
	wants(t, checkNATS(t, js, maxPayload), "streams", diag.Warn, "TIMERS: one server of the NATS cluster three keeps it", "nats stream edit TIMERS --replicas 3")
	for _, name := range []string{"TIMERS", "TIMERS_RETRY", "TIMERS_DEAD"} {
		stream, err := js.Stream(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		config := stream.CachedInfo().Config
		config.Replicas = 3
		if _, err := js.UpdateStream(t.Context(), config); err != nil {
			t.Fatal(err)
		}
	}
	testenv.Eventually(t, time.Minute, func() error { // until they have caught up
		if findings := diag.Findings(checkNATS(t, js, maxPayload)); findings.Has(diag.Fail, "streams") || findings.Has(diag.Warn, "streams") {
			return errors.New(describe(findings))
		}
		return nil
	}, "nothing to be said of the streams")
	if err := streams.EnsureDelivery(t.Context(), js, streams.Config{}); err != nil {
		t.Fatal(err)
	}
	wants(t, checkNATS(t, js, maxPayload), "streams", diag.Warn, "TIMERS_DELIVERY: one server of the NATS cluster three keeps it", "nats stream edit TIMERS_DELIVERY --replicas 3")
}

func TestNATSThatIsFull(t *testing.T) {
	t.Parallel()
	js := testenv.NATS(t).JetStream()
	if err := streams.Ensure(t.Context(), js, streams.Config{}); err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(t.Context(), "TIMERS_DEAD")
	if err != nil {
		t.Fatal(err)
	}
	config := stream.CachedInfo().Config
	config.MaxMsgs, config.Discard = 1, jetstream.DiscardNew
	if _, err := js.UpdateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	wants(t, checkNATS(t, js, maxPayload), "streams", diag.OK, "fit")
	if _, err := js.Publish(t.Context(), "timers.dead.a.b.c", []byte("letter")); err != nil {
		t.Fatal(err)
	}
	findings := checkNATS(t, js, maxPayload)
	wants(t, findings, "streams", diag.Fail, "TIMERS_DEAD: it is full: 1 messages of at most 1", "nats stream edit TIMERS_DEAD --max-msgs=2 --force", "timerd dead replay")
	if len(findings) == 0 || slices.ContainsFunc(findings, func(f diag.Finding) bool { return f.Check == "streams" && f.Level == diag.OK }) {
		t.Errorf("the streams are also said to fit:\n%s", describe(findings))
	}
}

func TestInstallation(t *testing.T) {
	t.Parallel()
	rdb, js := testenv.Redis(t).Client(), testenv.NATS(t).JetStream()
	check := func() []diag.Finding {
		t.Helper()
		return doctor.NewNATS(js, streams.Config{}, maxPayload).CheckInstallation(t.Context(), rdb)
	}
	belongs := func(id string) {
		t.Helper()
		if err := rdb.Set(t.Context(), keys.Installation, id, 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	wants(t, check(), "", diag.OK, "none yet")

	if err := streams.Ensure(t.Context(), js, streams.Config{}); err != nil {
		t.Fatal(err)
	}
	belongs("A")
	wants(t, check(), "", diag.Warn, "TIMERS, TIMERS_RETRY, TIMERS_DEAD: not marked", "$JS.API.STREAM.UPDATE.*")

	for _, stream := range []string{"TIMERS", "TIMERS_RETRY", "TIMERS_DEAD"} {
		if err := streams.SetOwner(t.Context(), js, streams.Owner{Stream: stream, Installation: "A"}); err != nil {
			t.Fatal(err)
		}
	}
	wants(t, check(), "", diag.OK, "A, in Redis and the streams")

	belongs("B")
	findings := check()
	wants(t, findings, "", diag.Fail, `TIMERS: it belongs to installation "A", and the Redis of this timerd to "B"`, "timerd doctor --adopt-streams")
	if len(findings) != 3 {
		t.Errorf("findings %+v, want one for each stream", findings)
	}
	if err := rdb.Del(t.Context(), keys.Installation).Err(); err != nil {
		t.Fatal(err)
	}
	wants(t, check(), "", diag.Warn, `this Redis has no identity, and the streams are those of installation "A"`)
}

// A right that no timerd needs is asked for, and its want fails nothing.
func TestInstallationWithoutTheRightToTheLogOfDeliveries(t *testing.T) {
	t.Parallel()
	rdb, js := testenv.Redis(t).Client(), testenv.NATS(t, func(o *server.Options) {
		o.Users = []*server.User{{Username: "u", Password: "x", Permissions: &server.Permissions{
			Publish: &server.SubjectPermission{Allow: []string{">"}, Deny: []string{"$JS.API.STREAM.INFO.TIMERS_DELIVERY"}},
		}}}
		o.NoAuthUser = "u"
	}).JetStream()
	findings := doctor.NewNATS(js, streams.Config{}, maxPayload).CheckInstallation(t.Context(), rdb)
	wants(t, findings, "", diag.Warn, "cannot tell which installation the log of deliveries belongs to", "$JS.API.STREAM.INFO.TIMERS_DELIVERY")
	if len(findings) != 1 {
		t.Errorf("findings %+v", findings)
	}
}

func TestNATSWithoutJetStream(t *testing.T) {
	t.Parallel()
	off := testenv.NATS(t, func(o *server.Options) { o.JetStream = false })
	wants(t, checkNATS(t, off.JetStream(), maxPayload), diag.CheckNATS, diag.Fail, "without JetStream", "jetstream block")

	denied := testenv.NATS(t, func(o *server.Options) {
		o.Users = []*server.User{{Username: "app", Password: "pw", Permissions: &server.Permissions{
			Publish: &server.SubjectPermission{Deny: []string{"$JS.API.>"}},
		}}}
	})
	js := denied.JetStream(nats.UserInfo("app", "pw"), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	wants(t, checkNATS(t, js, maxPayload), diag.CheckNATS, diag.Fail, "JetStream does not answer", "$JS.API.>")
}

// Nothing is said of webhooks before there is a log of deliveries.
func TestWebhooks(t *testing.T) {
	t.Parallel()
	js := testenv.NATS(t).JetStream()
	ctx := t.Context()
	if err := streams.Ensure(ctx, js, streams.Config{}); err != nil {
		t.Fatal(err)
	}
	if text := describe(checkNATS(t, js, maxPayload)); strings.Contains(text, "webhooks") || strings.Contains(text, "TIMERS_DELIVERY") {
		t.Errorf("where there are none:\n%s", text)
	}
	if err := streams.EnsureDelivery(ctx, js, streams.Config{}); err != nil {
		t.Fatal(err)
	}
	name := keys.DeliverConsumer("pay")
	_, err := js.CreateConsumer(ctx, "TIMERS", jetstream.ConsumerConfig{Durable: name, FilterSubject: "timers.fired.pay.>", AckPolicy: jetstream.AckExplicitPolicy})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(ctx, "timers.fired.pay.a.b", []byte("event")); err != nil {
		t.Fatal(err)
	}
	findings := checkNATS(t, js, maxPayload)
	wants(t, findings, "webhooks", diag.OK, "TIMERS_DELIVERY fits; consumers of timerd deliver: 1; events that wait: 1, in work: 0")
	wants(t, findings, "stream growth", diag.OK, "TIMERS_DELIVERY has got no messages lately")
	if _, err := js.PauseConsumer(ctx, "TIMERS", name, time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(ctx, "TIMERS_DELIVERY")
	if err != nil {
		t.Fatal(err)
	}
	config := stream.CachedInfo().Config
	config.MaxMsgs, config.Discard, config.Duplicates = 1, jetstream.DiscardNew, time.Second
	if _, err := js.UpdateStream(ctx, config); err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(ctx, "timers.delivery.pay.a.b", []byte("record")); err != nil {
		t.Fatal(err)
	}
	findings = checkNATS(t, js, maxPayload)
	wants(t, findings, "streams", diag.Fail, "TIMERS_DELIVERY: it is full: 1 messages of at most 1", "--discard=old --force")
	wants(t, findings, "webhooks", diag.Fail, "TIMERS_DELIVERY: its duplicate window is 1s", "nats stream edit TIMERS_DELIVERY --dupe-window")
	wants(t, findings, "webhooks", diag.Warn, "TIMERS_DELIVERY: once it is full it takes no more", "--discard=old")
	wants(t, findings, "webhooks", diag.Warn, "timerd-deliver~pay: paused", "nats consumer resume TIMERS timerd-deliver~pay")
}
