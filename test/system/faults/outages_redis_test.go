package faults_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/devserver"
	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/test/system"
)

// Redis's own reason is the cause of all resulting failures.
func TestOutagesOfRedis(t *testing.T) {
	t.Parallel()
	x := newScene(t, devserver.Directive("enable-protected-configs", "yes"),
		devserver.Directive("rdbcompression", "no"),
		// µs, for each key of a snapshot
		devserver.Directive("key-load-delay", "25000"), devserver.Directive("loading-process-events-interval-bytes",
			"1024"))
	loaded, killed := make(chan error, 1), make(chan error, 1)
	p, url := x.p, x.Env["TIMERD_REDIS_URL"]
	dir := x.Redis.Dir()
	// elsewhere has the commands ask by another URL than the timerd.
	elsewhere := func(u string) func(*scene) {
		return func(x *scene) { x.p, x.Env["TIMERD_REDIS_URL"] = nil, u }
	}
	back := func(x *scene) { x.p, x.Env["TIMERD_REDIS_URL"] = p, url }
	other := x.Redis.Client(func(o *redis.Options) { o.DB = 1 })
	x.Do("ACL", "SETUSER", "timerd", "on", ">secret", "~*", "&*", "+@all")

	x.play(outage{
		name: "out of memory", level: diag.Fail, check: diag.CheckRedis, // timers fire
		text:   `it is out of memory and refuses every write that needs memory: OOM command not allowed`,
		bring:  func(x *scene) { x.Do("CONFIG", "SET", "maxmemory", "1mb") },
		fix:    `redis-cli CONFIG SET maxmemory \d+`,
		advice: "CONFIG SET maxmemory ",
		end: func(x *scene) {
			x.quiet()
			x.Do("CONFIG", "SET", "maxmemory", 0) // for the rows below
		},
	}, outage{
		name: "a replica", level: diag.Fail, check: diag.CheckRedis, ready: "redis",
		text: `it is a replica and takes no writes: READONLY `,
		bring: func(x *scene) {
			host, port, _ := strings.Cut(testenv.FreeAddr(t), ":")
			x.Do("REPLICAOF", host, port)
		},
		fix:    `redis-cli REPLICAOF NO ONE`,
		advice: `let TIMERD_REDIS_URL name the master, 127`,
	}, outage{
		name: "too few replicas", level: diag.Fail, check: diag.CheckRedis, ready: "redis",
		text:  `it has too few replicas and refuses every write: NOREPLICAS `,
		bring: func(x *scene) { x.Do("CONFIG", "SET", "min-replicas-to-write", 1) },
		fix:   `redis-cli CONFIG SET min-replicas-to-write 0`,
	}, outage{
		name: "somebody's script", level: diag.Fail, check: diag.CheckRedis, ready: "redis",
		text: `it is busy with a long script or function: BUSY `,
		bring: func(x *scene) {
			x.Do("CONFIG", "SET", "lua-time-limit", 100) // ms, after which it answers so
			go func() { killed <- x.RDB.Eval(context.WithoutCancel(t.Context()), "while true do end", nil).Err() }()
		},
		fix: `redis-cli SCRIPT KILL`,
		end: func(*scene) {
			if err := <-killed; err == nil {
				t.Error("the script has ended by itself")
			}
		},
	}, outage{
		name: "a full disk", level: diag.Fail, check: diag.CheckRedis, ready: "redis",
		text: `it cannot save its snapshot and refuses every write: MISCONF `,
		bring: func(x *scene) {
			x.Do("CONFIG", "SET", "dir", "/proc") // which takes no files
			x.Do("CONFIG", "SET", "save", "3600 1000000")
			x.Do("BGSAVE")
		},
		before: func(x *scene) { x.Do("CONFIG", "SET", "dir", dir) }, // the room
		fix:    `redis-cli BGSAVE`,
		end:    func(x *scene) { x.Do("CONFIG", "SET", "save", "") },
	}, outage{
		name: "Redis is away", level: diag.Fail, check: diag.CheckRedis, ready: "redis",
		text:  x.Redis.Addr() + `.*(refused|EOF|reset)`,
		bring: func(x *scene) { x.Redis.Stop() },
		end:   func(x *scene) { x.Redis.Start() },
	}, outage{
		name: "Redis is frozen", level: diag.Fail, check: diag.CheckRedis, ready: "redis",
		text:   x.Redis.Addr() + `.*: it accepts connections and does not answer: `,
		advice: "on its machine: ps -o pid,stat,time,args -C redis-server",
		bring:  func(x *scene) { x.Redis.Pause() },
		end:    func(x *scene) { x.Redis.Resume() },
	}, outage{
		name: "timers in a database that no timerd serves", level: diag.Warn, check: diag.CheckDatabases,
		text:   `database 1 has 2 timers and no timerd: nothing fires there`,
		advice: "if a producer should use database 0, as TIMERD_REDIS_URL does, correct its URL",
		bring: func(*scene) {
			for i := range 2 {
				if err := other.FCall(t.Context(), "timer_set", []string{fmt.Sprint("shop:order:timeout:", i)}, "p",
					"PX", 20).Err(); err != nil {
					t.Fatal(err)
				}
			}
		},
		end: func(*scene) { other.FlushDB(t.Context()) },
	}, outage{
		name: "loading", level: diag.Fail, check: diag.CheckRedis, ready: "redis",
		text: `it is loading its data: LOADING `,
		bring: func(x *scene) {
			for i := range 600 {
				x.Do("SET", fmt.Sprint("filler-", i), strings.Repeat("x", 2<<10))
			}
			x.Do("BGREWRITEAOF") // so that they are in a snapshot, whose loading can be slowed down
			testenv.Eventually(t, system.Patience, func() bool {
				info, err := x.RDB.Info(t.Context(), "persistence").Result()
				return err == nil && strings.Contains(info, "aof_rewrite_in_progress:0") &&
					strings.Contains(info, "aof_rewrite_scheduled:0")
			}, "the append-only file to be rewritten")
			x.Redis.Stop()
			go func() { loaded <- x.Redis.Redis.Start(context.WithoutCancel(t.Context())) }()
		},
		end: func(x *scene) {
			x.Do("CONFIG", "SET", "key-load-delay", 0) // it has been seen
			if err := <-loaded; err != nil {
				t.Error(err)
			}
		},
	}, outage{
		name: "a wrong password", level: diag.Fail, check: diag.CheckRedis,
		text:  `WRONGPASS `,
		bring: elsewhere(x.Redis.UserURL("timerd", "wrong", 0)),
		end:   back,
	}, outage{
		name: "a wrong database", level: diag.Fail, check: diag.CheckRedis,
		text: `TIMERD_REDIS_URL names database 3, where no timerd is; database 0 of this Redis is served by `,
		bring: func(x *scene) {
			elsewhere(x.Redis.URL(3))(x)
			const want = "timerd: warning: TIMERD_REDIS_URL names database 3, where no timerd is; database 0 of this " +
				"Redis is served by "
			if _, _, said := x.Run("", "ls"); !strings.HasPrefix(said, want) {
				t.Errorf("ls says %s", said)
			}
		},
		end: back,
	})
	x.p.Stop()
}

// Rights taken from timerd, and another password, are reported as such, and not the resulting failures.
func TestOutagesOfRights(t *testing.T) {
	t.Parallel()
	x := newSystemScene(t, devserver.ACL(system.LeastPrivileged(t)))
	x.Env["TIMERD_REDIS_URL"] = x.Redis.UserURL("timerd", "secret", 0) + "?max_retries=1"
	x.start()
	c, url := x.Collect(), x.Env["TIMERD_REDIS_URL"]
	acl := func(change ...any) func(*scene) {
		return func(*scene) { x.Do(append([]any{"ACL", "SETUSER", "timerd"}, change...)...) }
	}
	lacks := outage{level: diag.Fail, check: diag.CheckRights, ready: "redis"}
	command, step, channel := lacks, lacks, lacks
	command.name, command.text, command.bring = "a command is refused", `user timerd lacks \+zadd`, acl("-zadd")
	command.fix = `redis-cli ACL SETUSER timerd \+zadd`
	step.name, step.text, step.bring = "steps are refused", `user timerd lacks \+fcall`, acl("-fcall")
	step.fix = `redis-cli ACL SETUSER timerd \+fcall`
	channel.name, channel.text = "events are refused", `user timerd lacks &__keyevent@0__:expired`
	channel.bring = acl("resetchannels", "&timerd:*", "&__keyspace@0__:*:*:*:*", "&__keyspace@0__:timerd:canary:*")
	channel.fix = `redis-cli ACL SETUSER timerd '&__keyevent@0__:expired'`
	// The commands, as another user, know of this one through the timerd's report.
	namespace := channel
	namespace.name, namespace.text = "events of a namespace are refused",
		`user timerd lacks &__keyspace@0__:\*:\*:\*:\*`
	namespace.fix = `redis-cli ACL SETUSER timerd '&__keyspace@0__:\*:\*:\*:\*'`
	namespace.bring = func(*scene) {
		acl("resetchannels", "&timerd:*", "&__keyevent@0__:expired", "&__keyspace@0__:timerd:canary:*")(x)
		x.Env["TIMERD_REDIS_URL"] = x.Redis.URL(0)
		x.p.Measures(true, `timerd_keyspace_events_complete 0`)
		x.Do("SET", "shop:order:timeout:1", "p", "PX", system.Soon)
		x.Expect(c, "shop:order:timeout:1=p") // adopted by audit
	}
	namespace.end = func(*scene) {
		x.Env["TIMERD_REDIS_URL"] = url
		x.p.Measures(true, `timerd_keyspace_events_complete 1`)
	}
	x.play(command, step, channel, namespace, outage{
		name: "a guard is refused", level: diag.Warn, check: diag.CheckAside,
		text: `1 timer waits because timerd may not read their guards, such as paid-2 of shop:order:timeout:2|` +
			`1 timers whose guards timerd may not read; `,
		bring: func(*scene) {
			acl("resetkeys", "~*:*:*:*", "~timerd:*")(x)
			x.Do("FCALL", "timer_set", 1, "shop:order:timeout:2", "p", "PX", 1, "UNLESS", "paid-2")
		},
		fix: `redis-cli ACL SETUSER timerd '~paid-2'`,
		end: acl("~*"),
	}, outage{
		name: "another password", level: diag.Fail, check: diag.CheckRedis, ready: "redis", text: `WRONGPASS `,
		bring: func(*scene) {
			acl("resetpass", ">another")(x)
			x.Do("CLIENT", "KILL", "USER", "timerd")
		},
		end: acl(">secret"),
	})
	x.p.Stop()
}

// The full stream is named, and the fix loses no unread event.
func TestOutagesOfStreams(t *testing.T) {
	t.Parallel()
	x := newScene(t)
	c := x.Collect()
	fire := func(n int) {
		x.Do("FCALL", "timer_set", 1, fmt.Sprint("shop:order:timeout:", n), "p", "PX", 20)
	}
	limit := func(messages, bytes int64) {
		t.Helper()
		stream, err := x.JS.Stream(t.Context(), "TIMERS")
		if err != nil {
			t.Fatal(err)
		}
		config := stream.CachedInfo().Config
		config.MaxMsgs, config.MaxBytes, config.Discard = messages, bytes, jetstream.DiscardNew
		if _, err := x.JS.UpdateStream(t.Context(), config); err != nil {
			t.Fatal(err)
		}
	}
	full := outage{level: diag.Fail, check: diag.CheckStreams, ready: "jetstream"}
	messages, bytes, read := full, full, full
	messages.name, messages.text = "a stream that is full of messages", `TIMERS: it is full: 2 messages of at most 2`
	messages.bring = func(*scene) {
		limit(2, -1)
		fire(1)
		fire(2)
		fire(3)
	}
	messages.fix = `nats stream edit TIMERS --max-msgs=\d+ --force`
	bytes.name, bytes.text = "a stream that is full of bytes", `TIMERS: it is full: \d+ bytes of at most 1500`
	bytes.bring = func(*scene) { limit(-1, 1500) }
	bytes.fix = `nats stream edit TIMERS --max-bytes=\d+KB --force`
	read.name, read.text = "a stream that is full of read events", `TIMERS: it is full: 3 messages of at most 3`
	read.bring = func(*scene) {
		ctx := t.Context()
		consumer, err := x.JS.CreateConsumer(ctx, "TIMERS", jetstream.ConsumerConfig{Durable: "reader",
			AckPolicy: jetstream.AckExplicitPolicy})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			m, err := consumer.Next(jetstream.FetchMaxWait(system.Patience))
			if err == nil {
				err = m.DoubleAck(ctx)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		limit(3, -1)
	}
	read.fix = `nats stream purge TIMERS --seq=3 --force`
	read.end = func(*scene) {
		fire(4)
		x.Expect(c, "shop:order:timeout:1=p", "shop:order:timeout:2=p", "shop:order:timeout:3=p",
			"shop:order:timeout:4=p")
		stream, err := x.JS.Stream(t.Context(), "TIMERS")
		if err != nil || stream.CachedInfo().State.FirstSeq != 3 {
			t.Errorf("the unread events are gone: %+v, %v", stream.CachedInfo().State, err)
		}
		if err := x.JS.DeleteConsumer(t.Context(), "TIMERS", "reader"); err != nil {
			t.Fatal(err)
		}
	}
	away := outage{
		name: "NATS is away", level: diag.Fail, check: diag.CheckNATS, ready: "jetstream", text: `NATS |JetStream `,
		bring: func(*scene) {
			x.NATS.Stop()
			fire(6)
			x.owed(6 * time.Second) // which is a problem if nothing explains it
		},
		end: func(*scene) { x.NATS.Start() },
	}
	account, off := full, away
	account.name, account.text = "an account that is full",
		`the account is full: its streams take \d+ of at most \d+ bytes`
	account.bring = func(*scene) {
		limit(-1, -1)
		info, err := x.JS.AccountInfo(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		x.NATS.Limit(func(l *server.JetStreamAccountLimits) { l.MaxStore = int64(info.Store) })
		fire(5)
	}
	account.end = func(*scene) {
		x.NATS.Limit(func(*server.JetStreamAccountLimits) {})
		x.Expect(c, "shop:order:timeout:1=p", "shop:order:timeout:2=p", "shop:order:timeout:3=p",
			"shop:order:timeout:4=p", "shop:order:timeout:5=p")
	}
	off.name, off.text = "JetStream has ended, as on a full disk", `it runs without JetStream|JetStream `
	off.advice = "look at the log of the NATS server" // which itself is there
	off.bring = func(*scene) { x.NATS.DisableJetStream() }
	off.end = func(*scene) { x.NATS.Restart() }
	uncounted := outage{
		name: "an account without room for TIMERS_STATE", level: diag.Warn, check: diag.CheckCounting,
		text:   `TIMERS_STATE: there is no such stream: the timers are not counted, so nobody would notice if they got lost: .*\(max_streams: 3\)`,
		advice: "raise max_streams of the account",
		bring: func(*scene) {
			x.NATS.Limit(func(l *server.JetStreamAccountLimits) { l.MaxStreams = 3 })
			if err := x.JS.DeleteStream(t.Context(), "TIMERS_STATE"); err != nil {
				t.Fatal(err)
			}
		},
		end: func(*scene) { x.NATS.Limit(func(*server.JetStreamAccountLimits) {}) },
	}
	x.play(messages, bytes, read, account, uncounted, away, off)
	x.p.Stop()
}

// owed waits until a timer has been owed for so long.
func (x *scene) owed(long time.Duration) {
	x.T.Helper()
	testenv.Eventually(x.T, toldWithin, func() error {
		_, out, _ := x.Run("", "status", "--json")
		var report struct {
			Redis struct {
				At     time.Time
				Oldest struct{ Due time.Time }
			}
		}
		err := json.Unmarshal([]byte(out), &report)
		if due := report.Redis.Oldest.Due; err == nil && (due.IsZero() || report.Redis.At.Sub(due) < long) {
			err = fmt.Errorf("owed since %v", due)
		}
		return err
	}, "a timer to be owed")
}

// A cluster of NATS that has no leader is named as such, and one whose server is away as a warning.
func TestOutagesOfANATSCluster(t *testing.T) {
	t.Parallel()
	x := newSystemScene(t)
	servers := testenv.NATSCluster(t)
	x.NATS, x.JS = servers[0], servers[0].JetStream()
	x.Env["TIMERD_REDIS_URL"] += "?max_retries=1"
	x.Env["TIMERD_NATS_URL"], x.Env["TIMERD_STREAM_REPLICAS"] = x.NATS.URL(), "3"
	testenv.Eventually(t, system.Patience, func() error { _, err := x.JS.AccountInfo(t.Context()); return err },
		"JetStream in the cluster")
	x.start()
	x.play(outage{
		name: "a server of three is away", level: diag.Warn, check: diag.CheckStreams,
		text:  `replicas that are up to date: TIMERS: 2 of 3; TIMERS_RETRY: 2 of 3; `,
		bring: func(*scene) { servers[2].Stop() },
		end:   func(*scene) { servers[2].Start() },
	}, outage{
		name: "no server leads", level: diag.Fail, check: diag.CheckStreams, ready: "jetstream",
		text: `TIMERS.*: .*no leader, so `,
		bring: func(*scene) {
			servers[1].Stop()
			servers[2].Stop()
		},
		end: func(*scene) {
			servers[1].Start()
			servers[2].Start()
		},
	})
	x.p.Stop()
}
