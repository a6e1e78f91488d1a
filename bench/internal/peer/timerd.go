package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/bench/internal/firing"
	"github.com/timerd-io/timerd/bench/internal/rig"
	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/devserver"
	"github.com/timerd-io/timerd/schedule"
)

// TimerdStream and TimerdSubject are the stream and the subject of timerd's firings.
const (
	TimerdStream  = client.DefaultStream
	timerdSubject = client.DefaultPrefix + ".fired.>"
)

// Workers that consume a stream.
const (
	workerStream = "stream"
	workerRetry  = "retry"
)

// RetryPolicy is the TIMERD_RETRY of the retries workload: Attempts firings of each timer.
const (
	RetryPolicy = "*=1s,1s"
	Attempts    = 3
)

// Timerd is timerd as users run it, with its Redis and its NATS.
type Timerd struct {
	// Instances is the number of timerds that share the work.
	Instances int
	// Plain sets timers by SET key payload PXAT, so that timerd has to adopt them. Without it the Go client sets them
	// by timer_set.
	Plain bool
	// SyncAlways makes NATS sync each message to disk before the acknowledgement, as deploy/nats.conf does.
	SyncAlways bool
	// SyncDelay is added to each sync of NATS's disk.
	SyncDelay time.Duration
	// RedisAlways makes Redis sync each write to disk before the answer, instead of every second as in
	// deploy/redis.conf.
	RedisAlways bool
	// Processors is the GOMAXPROCS of the timerds. 0 leaves the choice to timerd: one, except on a cluster.
	Processors int
	// Retries means that a consumer fails every attempt of each event except the last.
	Retries bool
	// Masters is the number of masters of a Redis Cluster; 0 means a single Redis.
	Masters int
	// Replicas is the number of NATS servers that keep the streams; 0 means one.
	Replicas int
	// Unconsumed starts no consumer, so that any timer may fire.
	Unconsumed bool

	Redis redis.UniversalClient // after Start
	NATS  *nats.Conn            // after Start
	Addrs []string              // after Start: the HTTP addresses of the timerds

	env []string
}

// slowDisk is a delay that slows a disk of 5,000 syncs a second to about 1,000.
const slowDisk = 800 * time.Microsecond

func timerdSpecs() []Spec {
	spec := func(name, title, settings string, t Timerd) Spec {
		return Spec{
			Name: name, Title: title, Settings: settings, OnRedis: true, Preload: true, ArmRate: 15_000,
			Missing: available,
			Variant: t.Instances > 1 || t.SyncAlways || t.RedisAlways || t.Processors > 0 || t.Masters > 0 ||
				t.Replicas > 0,
			New: func(Spec) System { t := t; return &t },
		}
	}
	return []Spec{
		spec("timerd", "timerd, timer_set", "defaults; deploy/redis.conf; set by the Go client's SetMany",
			Timerd{Instances: 1}),
		spec("timerd-plain", "timerd, plain SET",
			"defaults; deploy/redis.conf; set by SET … PXAT in pipelines, adopted by timerd",
			Timerd{Instances: 1, Plain: true}),
		spec("timerd-x3", "timerd, three of them", "as timerd, three processes", Timerd{Instances: 3}),
		spec("timerd-procs2", "timerd, two processors", "as timerd, with GOMAXPROCS=2",
			Timerd{Instances: 1, Processors: 2}),
		spec("timerd-always", "timerd, Redis sync always", "as timerd; Redis with appendfsync always",
			Timerd{Instances: 1, RedisAlways: true}),
		spec("timerd-always-sync", "timerd, Redis and NATS sync always",
			"as timerd-sync; Redis with appendfsync always", Timerd{Instances: 1, RedisAlways: true, SyncAlways: true}),
		spec("timerd-always-r3", "timerd, Redis sync always, NATS with three replicas",
			"as timerd-r3; Redis with appendfsync always", Timerd{Instances: 1, RedisAlways: true, Replicas: 3}),
		spec("timerd-cluster", "timerd, cluster of three masters",
			"as timerd, Redis Cluster of three masters without replicas", Timerd{Instances: 1, Masters: 3}),
		spec("timerd-cluster-x3", "three timerds, cluster of three masters", "as timerd-cluster, three processes",
			Timerd{Instances: 3, Masters: 3}),
		spec("timerd-r3", "timerd, NATS with three replicas",
			"as timerd, three nats-servers and TIMERD_STREAM_REPLICAS=3", Timerd{Instances: 1, Replicas: 3}),
		spec("timerd-sync", "timerd, NATS sync always",
			"as timerd; NATS with sync_interval: always, as in deploy/nats.conf",
			Timerd{Instances: 1, SyncAlways: true}),
		spec("timerd-slow", "timerd, NATS sync always, slow disk",
			fmt.Sprintf("as timerd-sync; each fsync of NATS takes %v longer", slowDisk),
			Timerd{Instances: 1, SyncAlways: true, SyncDelay: slowDisk}),
	}
}

// Start implements System.
func (t *Timerd) Start(ctx context.Context, r *rig.Rig, fired func(firing.Firing)) error {
	var err error
	if t.Masters > 0 {
		t.env = append(t.env, "TIMERD_REDIS_MODE=cluster")
		t.Redis, err = r.RedisCluster(ctx, t.Masters)
	} else {
		var opts []devserver.RedisOption
		if t.RedisAlways {
			opts = append(opts, devserver.Directive("appendfsync", "always"))
		}
		t.Redis, err = r.Redis(ctx, opts...)
	}
	if err != nil {
		return err
	}
	r.SyncDelay = t.SyncDelay
	var store []string
	if t.SyncAlways {
		store = []string{syncAlways}
	}
	var nc *nats.Conn
	if t.Replicas > 1 {
		t.env = append(t.env, "TIMERD_STREAM_REPLICAS="+strconv.Itoa(t.Replicas))
		nc, err = r.NATSCluster(ctx, t.Replicas)
	} else {
		nc, err = r.NATS(ctx, store...)
	}
	if err != nil {
		return err
	}
	t.NATS = nc
	if t.Retries {
		t.env = append(t.env, "TIMERD_RETRY="+RetryPolicy)
	}
	if t.Processors > 0 {
		t.env = append(t.env, "GOMAXPROCS="+strconv.Itoa(t.Processors))
	}
	if t.Addrs, err = r.Timerds(ctx, t.Instances, nc, t.env...); err != nil {
		return err
	}
	if t.Unconsumed {
		return nil
	}
	kind := workerStream
	if t.Retries {
		kind = workerRetry
	}
	return startWorker(ctx, r, rig.RoleConsumer, fired, kind, nc.ConnectedUrl(), TimerdStream, timerdSubject)
}

// Restart ends the timerds and starts as many new ones. It returns the time from the start until all were ready.
func (t *Timerd) Restart(ctx context.Context, r *rig.Rig) (ready time.Duration, err error) {
	if err := r.Stop(rig.RoleTimerd); err != nil {
		return 0, err
	}
	began := time.Now()
	t.Addrs, err = r.Timerds(ctx, t.Instances, t.NATS, t.env...)
	return time.Since(began), err
}

// Audits returns the number of audits after a subscription that the first timerd has made since its start.
func (t *Timerd) Audits(ctx context.Context) (int, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+t.Addrs[0]+"/metrics", http.NoBody)
	if err != nil {
		return 0, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err
	}
	text, err := io.ReadAll(response.Body)
	if err := errors.Join(err, response.Body.Close()); err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if count, ok := strings.CutPrefix(line, `timerd_audits_total{reason="subscribed"} `); ok {
			return strconv.Atoi(strings.TrimSpace(count))
		}
	}
	return 0, nil // none so far
}

// Arm implements System. It returns once every timer is in timerd's schedule.
func (t *Timerd) Arm(ctx context.Context, timers []firing.Timer) error {
	if t.Plain {
		return t.armPlain(ctx, timers)
	}
	set := client.New(t.Redis)
	return inParallel(ctx, timers, 2, func(ctx context.Context, part []firing.Timer) error {
		settings := make([]client.Setting, len(part))
		for i, timer := range part {
			settings[i] = client.Setting{Key: timer.Key(), Payload: timer.Payload(), When: client.At(timer.Due)}
		}
		_, err := set.SetMany(ctx, settings)
		return err
	})
}

func (t *Timerd) armPlain(ctx context.Context, timers []firing.Timer) error {
	before, _, err := t.Counts(ctx)
	if err != nil {
		return err
	}
	if err := SetPlain(ctx, t.Redis, timers); err != nil {
		return err
	}
	_, err = t.AwaitAdopted(ctx, before+int64(len(timers)), time.Minute)
	return err
}

// Counts returns the numbers of pending and firing timers in timerd's schedule.
func (t *Timerd) Counts(ctx context.Context) (pending, firing int64, err error) {
	nodes, err := schedule.New(t.Redis, schedule.DefaultMaxPayload).Nodes(ctx)
	if err != nil {
		return 0, 0, err
	}
	for _, node := range nodes {
		found, err := node.ScanDue(ctx, 0, 0)
		if err != nil {
			return 0, 0, err
		}
		pending, firing = pending+found.Pending, firing+found.Firing
	}
	return pending, firing, nil
}

// AwaitAdopted waits until the schedule has n pending timers, and returns the time it took.
func (t *Timerd) AwaitAdopted(ctx context.Context, n int64, timeout time.Duration) (time.Duration, error) {
	began := time.Now()
	err := rig.Until(ctx, timeout, func(ctx context.Context) error {
		pending, _, err := t.Counts(ctx)
		if err == nil && pending < n {
			err = fmt.Errorf("%d of %d timers are adopted", pending, n)
		}
		return err
	})
	return time.Since(began), err
}

// SetPlain sets timers by plain SETs in pipelines.
func SetPlain(ctx context.Context, rdb redis.UniversalClient, timers []firing.Timer) error {
	return inParallel(ctx, timers, 2, func(ctx context.Context, part []firing.Timer) error {
		_, err := rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for _, timer := range part {
				pipe.Do(ctx, "SET", timer.Key(), timer.Payload(), "PXAT", timer.Due.UnixMilli())
			}
			return nil
		})
		return err
	})
}

// streamWorker consumes a subject of a JetStream stream and acknowledges each message. Its arguments are the NATS URL,
// the stream and the subject.
func streamWorker(ctx context.Context, args []string, report *firing.Reporter) error {
	return consume(ctx, args, report, jetstream.ConsumerConfig{MaxAckPending: -1},
		func(msg jetstream.Msg, received time.Time, meta *jetstream.MsgMetadata) error {
			n, err := firing.OfPayload(msg.Data())
			if err != nil {
				return err
			}
			if err := report.Fired(firing.Firing{N: n, Received: received, Published: meta.Timestamp}); err != nil {
				return err
			}
			return msg.Ack()
		})
}

// consume calls handle for each message of a stream's subject until ctx ends or handle fails.
func consume(ctx context.Context, args []string, report *firing.Reporter, cfg jetstream.ConsumerConfig,
	handle func(jetstream.Msg, time.Time, *jetstream.MsgMetadata) error) error {
	const want = 3
	if len(args) != want {
		return fmt.Errorf("want NATS URL, stream and subject, not %q", args)
	}
	js, err := connect(args[0])
	if err != nil {
		return err
	}
	cfg.Durable, cfg.AckPolicy, cfg.FilterSubject = consumerName, jetstream.AckExplicitPolicy, args[2]
	consumer, err := js.CreateConsumer(ctx, args[1], cfg)
	if err != nil {
		return err
	}
	failed := make(chan error, 1)
	consuming, err := consumer.Consume(func(msg jetstream.Msg) {
		received := time.Now()
		meta, err := msg.Metadata()
		if err == nil {
			err = handle(msg, received, meta)
		}
		if err != nil {
			select {
			case failed <- err:
			default:
			}
		}
	}, jetstream.PullMaxMessages(consumerBatch))
	if err != nil {
		return err
	}
	defer consuming.Stop()
	if err := report.Ready(); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return err
	}
}

const (
	consumerName  = "bench"
	consumerBatch = 5000 // messages fetched ahead
)

func connect(url string) (jetstream.JetStream, error) {
	nc, err := nats.Connect(url, nats.MaxReconnects(-1))
	if err != nil {
		return nil, err
	}
	return jetstream.New(nc)
}

var errAgain = errors.New("not yet")

// retryWorker is a consumer of the Go client whose handler fails until the last attempt. It reports attempt a of timer
// n as N = AttemptN(n, a), with the due time of the event.
func retryWorker(ctx context.Context, args []string, report *firing.Reporter) error {
	js, err := connect(args[0])
	if err != nil {
		return err
	}
	consumer := client.NewConsumer(js)
	consumer.Concurrency = 256
	if err := report.Ready(); err != nil {
		return err
	}
	return consumer.Consume(ctx, "bench", func(_ context.Context, e event.Event) error {
		received := time.Now()
		n, err := firing.OfPayload(e.Data)
		if err != nil {
			return client.Dead(err)
		}
		if err := report.Fired(firing.Firing{N: AttemptN(n, e.Attempt), Received: received, Published: e.Time,
			Due: e.Due}); err != nil {
			return err
		}
		if e.Attempt < Attempts {
			return errAgain
		}
		return nil
	})
}

// AttemptN returns a number for an attempt of a timer.
func AttemptN(n int64, attempt int) int64 { return n*Attempts + int64(attempt) - 1 }
