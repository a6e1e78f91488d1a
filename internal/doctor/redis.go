package doctor

import (
	"context"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/rights"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// Redis looks at a Redis server. Set its fields before Check.
type Redis struct {
	rdb  *redis.Client
	node *schedule.Node

	DB         int             // the database of the timers
	Namespaces keys.Namespaces // timerd must have the right to their keys; none if unknown
	MaxPayload int             // of the function library, in bytes
	Events     bool            // whether timerd uses keyspace events

	info     diag.Info         // its reply to INFO
	infoErr  error             // why the reply is missing
	settings map[string]string // the ones that CONFIG GET shows; none if it is not allowed
	unread   error             // why it does not show all
}

// NewRedis returns a Redis that checks the server of a node.
func NewRedis(node *schedule.Node) *Redis {
	return &Redis{rdb: node.Server(), node: node, MaxPayload: schedule.DefaultMaxPayload, Events: true}
}

// inCluster reports whether the server should be part of a Redis Cluster.
func (d *Redis) inCluster() bool { return d.node.Name() != "" }

// Check returns the findings about the server. A silent server is a finding too.
func (d *Redis) Check(ctx context.Context) diag.Findings {
	reply, err := d.rdb.Info(ctx).Result()
	d.info, d.infoErr = diag.ParseInfo(reply), err
	if err == nil {
		d.settings, d.unread = d.readSettings(ctx)
	}
	return diag.Run(d.checks(), ctx, nil)
}

// checks returns the table of the checks of a server of Redis.
func (d *Redis) checks() []diag.Check[context.Context] {
	const version = "redis version"
	known := []string{version}
	return []diag.Check[context.Context]{
		{Name: version, Run: d.version},
		{Name: "redis role", Needs: known, Run: d.role},
		{Name: diag.CheckCluster, Needs: known, Run: d.cluster},
		{Name: "keyspace events", Needs: known, Run: d.events},
		{Name: "persistence", Needs: known, Run: d.persistence},
		{Name: "eviction", Needs: known, Run: d.eviction},
		{Name: "lazy freeing", Needs: known, Run: d.freeing},
		{Name: "function library", Needs: known, Run: d.library},
		{Name: "apps", Needs: known, Run: d.apps},
	}
}

// version judges whether timerd can use the server.
func (d *Redis) version(_ context.Context, r *diag.Findings) {
	if d.infoErr != nil {
		r.Fail("see the line redis rights; without INFO timerd does not start, and the other checks of Redis cannot "+
			"work", "INFO: %v", d.infoErr)
		return
	}
	version := d.info["redis_version"]
	name := "Redis " + version
	if v := d.info["valkey_version"]; v != "" {
		name = "Valkey " + v
	}
	major, _, _ := strings.Cut(version, ".")
	if n, err := strconv.Atoi(major); err != nil || n < 7 {
		r.Fail("upgrade to Redis 7.0 or later, or to Valkey", "%s lacks functions", name)
		return
	}
	r.OK("%s", name)
}

func (d *Redis) role(_ context.Context, r *diag.Findings) {
	switch {
	case d.info["role"] != "master":
		r.Fail("let TIMERD_REDIS_URL name the master, or use TIMERD_REDIS_MODE=sentinel",
			"it is a replica of %s:%s and takes no writes", d.info["master_host"], d.info["master_port"])
	case d.info["loading"] == "1":
		r.Warn("wait until it has loaded its data", "it is loading its data")
	default:
		r.OK("master with %s replicas", d.info["connected_slaves"])
	}
}

// cluster checks that the server is in the configured mode, and that its cluster works.
func (d *Redis) cluster(ctx context.Context, r *diag.Findings) {
	switch enabled := d.info["cluster_enabled"] == "1"; {
	case enabled && !d.inCluster():
		r.Fail("set TIMERD_REDIS_MODE=cluster", "it is part of a Redis Cluster")
		return
	case !enabled && d.inCluster():
		r.Fail("set TIMERD_REDIS_MODE=standalone", "it is no part of a Redis Cluster")
		return
	case !enabled:
		return
	}
	reply, err := d.rdb.ClusterInfo(ctx).Result()
	state := diag.ParseInfo(reply)
	switch {
	case err != nil:
		r.Fail(rights.Grant(rights.UnknownUser, "+cluster|info"), "CLUSTER INFO: %v", err)
	case state["cluster_state"] != "ok":
		r.Fail("see CLUSTER NODES: mostly a master without a replica is down, or slots have no master",
			"the cluster is down; %s of %d slots are served", state["cluster_slots_ok"], keys.Slots)
	default:
		r.OK("%s masters; all %d slots are served", state["cluster_size"], keys.Slots)
		d.openSlots(ctx, r)
	}
	if d.settings["cluster-require-full-coverage"] == "yes" {
		r.Warn(setting("cluster-require-full-coverage no"),
			"cluster-require-full-coverage is yes: if one master and its replicas are away, all timers stop, not "+
				"only its own")
	}
}

// openSlots warns if slots are moving. It asks the server itself.
func (d *Redis) openSlots(ctx context.Context, r *diag.Findings) {
	nodes, err := d.rdb.ClusterNodes(ctx).Result()
	if err != nil {
		return // timerd itself does not need this right
	}
	for line := range strings.Lines(nodes) {
		if open := strings.Count(line, "["); open > 0 && strings.Contains(line, "myself") {
			r.Warn("wait until the move ends; if it hangs: redis-cli --cluster fix "+d.rdb.Options().Addr,
				"%d slots are moving; their timers wait until then", open)
		}
	}
}

// setting returns the fix that makes a setting, such as "appendonly yes", permanent.
func setting(line string) string {
	return "set it here and in redis.conf: redis-cli CONFIG SET " + line
}

// readSettings returns the settings that CONFIG GET shows, and the reason why others are missing; nil if it shows all.
func (d *Redis) readSettings(ctx context.Context) (settings map[string]string, unread error) {
	settings = map[string]string{}
	for _, name := range []string{"notify-keyspace-events", "appendfsync", "save", "lazyfree-lazy-expire",
		"cluster-require-full-coverage"} {
		got, err := d.rdb.ConfigGet(ctx, name).Result()
		if value, ok := got[name]; err == nil && ok {
			settings[name] = value
		} else if err != nil {
			unread = err
		}
	}
	return settings, unread
}

func (d *Redis) persistence(_ context.Context, r *diag.Findings) {
	server, settings := d.info, d.settings
	appendOnly := setting("appendonly yes")
	save, knowsSave := settings["save"]
	switch {
	case server["aof_last_write_status"] == "err" || server["rdb_last_bgsave_status"] == "err":
		r.Fail("see the server's log: mostly a full disk or missing rights on its directory",
			"the last write to disk failed (AOF: %s, RDB: %s), so a restart loses timers or writes are refused",
			server["aof_last_write_status"], server["rdb_last_bgsave_status"])
	case server["aof_enabled"] == "1" && settings["appendfsync"] == "no":
		r.Warn(setting("appendfsync everysec"),
			"append-only file, synced by the operating system: a power cut loses some 30 s of timers")
	case server["aof_enabled"] == "1":
		lost := "a power cut may lose the last second"
		if settings["appendfsync"] == "always" {
			lost = "every write is synced"
		}
		r.OK("append-only file; %s", lost)
	case !knowsSave:
		r.Warn("switch the append-only file on, in the parameter group of a managed Redis",
			"no append-only file, and CONFIG GET does not show whether there are snapshots")
	case save == "":
		r.Fail(appendOnly, "neither append-only file nor snapshots: a restart loses every timer")
	default:
		r.Warn(appendOnly,
			"snapshots only (save %s): a crash loses the timers set since the last one, and plain keys that run out "+
				"while Redis is down never fire", save)
	}
}

func (d *Redis) eviction(_ context.Context, r *diag.Findings) {
	server := d.info
	policy, limit, used := server["maxmemory_policy"], server.Number("maxmemory"), server.Number("used_memory")
	fix := setting("maxmemory-policy noeviction")
	const moreMemory = "raise maxmemory; plan 0.5 kB for each timer with a payload of 200 bytes"
	switch {
	case limit == 0 && policy == "noeviction":
		r.OK("noeviction; no maxmemory")
	case limit == 0:
		r.Warn(fix, "%s, which takes effect once a maxmemory is set", policy)
	case strings.HasPrefix(policy, "allkeys-"):
		r.Fail(fix, "%s: a full Redis evicts the schedule itself, and every timer with it", policy)
	case policy != "noeviction":
		r.Warn(fix, "%s: a full Redis evicts the timers' keys; they still fire, but a lost DEL can no longer be told "+
			"from an eviction", policy)
	case used > limit/20*19:
		r.Fail(moreMemory, "noeviction, and %d of %d bytes are used: Redis refuses new timers, or is about to", used,
			limit)
	case used > limit/10*9:
		r.Warn(moreMemory, "noeviction, and %d of %d bytes are used: a full Redis refuses new timers", used, limit)
	default:
		r.OK("noeviction; %d %% of maxmemory used", 100*used/limit)
	}
}

// freeing judges how large keys are freed. It adds nothing if the setting is unknown.
func (d *Redis) freeing(_ context.Context, r *diag.Findings) {
	switch d.settings["lazyfree-lazy-expire"] {
	case "yes":
		r.OK("large keys that ran out are freed by another thread")
	case "no":
		r.Warn(setting("lazyfree-lazy-expire yes"),
			"lazyfree-lazy-expire is no: a large hash that runs out holds Redis, and every timer, for milliseconds")
	}
}

func (d *Redis) library(ctx context.Context, r *diag.Findings) {
	state, limit, err := d.node.Library(ctx)
	switch {
	case redis.IsPermissionError(err): // the check of rights reports it
	case err != nil:
		r.Fail("use a server with functions (Dragonfly and KeyDB have none); or, if it has them, "+rights.Grant(
			rights.UnknownUser, "+function|list", "+function|load"), "%v", err)
	// timerd status reports it
	case state == schedule.LibraryMissing && diag.Refusal(d.node.TryLoad(ctx)).IsPermanent():
	case state == schedule.LibraryMissing:
		r.Warn("start timerd once, which loads it",
			"it is not loaded yet, so timer_set and the other functions are unknown")
	case state == schedule.LibraryDifferent && limit > 0 && limit != d.MaxPayload:
		r.Warn("give all timerds of this Redis the same TIMERD_MAX_PAYLOAD: the one that starts last sets the limit "+
			"of all",
			"its payload limit is %d bytes, and TIMERD_MAX_PAYLOAD is %d", limit, d.MaxPayload)
	case state == schedule.LibraryDifferent:
		r.Warn("none needed: the timerd that starts last loads its own library", "it is of another version of timerd")
	default:
		d.steps(ctx, r)
	}
}

// steps checks the library of steps, if the clients' library is of this version. A timerd loads the library at its
// start: if no timerd has served the database, there is nothing to check.
func (d *Redis) steps(ctx context.Context, r *diag.Findings) {
	has, err := d.node.HasSteps(ctx)
	if err != nil {
		r.Warn("run timerd doctor again", "%v", err)
		return
	}
	if !has && d.isServed(ctx) {
		r.Warn("give Redis memory, and timerd's user the right to load functions: each sweep tries again; "+
			rights.Grant(rights.UnknownUser, "+function|load"),
			"timerd's steps are not loaded, and run as scripts, which takes Redis longer")
		return
	}
	r.OK("loaded, of this version; payloads up to %d bytes", d.MaxPayload)
}

// isServed reports whether timerds have served the database within a day. A cluster has only one database.
func (d *Redis) isServed(ctx context.Context) bool {
	n, err := d.rdb.Exists(ctx, keys.Single.About()).Result()
	return d.inCluster() || err != nil || n > 0
}
