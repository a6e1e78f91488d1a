package load

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/timerd-io/timerd/bench/internal/peer"
	"github.com/timerd-io/timerd/bench/internal/result"
	"github.com/timerd-io/timerd/bench/internal/rig"
)

// Names of what is measured with millions of timers pending; the report knows them too. What has its name from
// [Scale] alone is measured with nothing else going on.
const (
	MillionsPrefix  = "millions: "
	MillionsEmpty   = MillionsPrefix + "empty, " // the name of a shape follows: before the others are set
	MillionsMemory  = MillionsPrefix + "memory"
	MillionsStart   = MillionsPrefix + "audits at timerd's start"
	MillionsAudit   = MillionsPrefix + "audit after a gap"
	MillionsSave    = MillionsPrefix + "BGSAVE"
	MillionsRewrite = MillionsPrefix + "BGREWRITEAOF"
	MillionsList    = MillionsPrefix + "`timerd ls --limit 0`"
	MillionsPage    = MillionsPrefix + "`timerd ls`"
)

// Values of these.
const (
	ValueTook     = "tookS"
	ValueReady    = "readyS"
	ValueFork     = "forkMs"
	ValueCopied   = "copiedBytes" // pages that Redis wrote to while its child had them too
	ValueFile     = "fileBytes"
	ValueUsed     = "usedMemoryBytes"
	ValueResident = "usedMemoryRSSBytes"
	ValueAOF      = "aofBytes"
)

// What a pending timer takes at most: memory for Redis and for the pages that are copied while its child has them, and
// disk for the append-only file, the one that replaces it, and a dump. The reserve is for everything else.
const (
	memoryPerTimer = 800
	diskPerTimer   = 1500
	reserve        = 1 << 30
)

// ErrNoRoom says that a workload takes more memory or disk than there is.
var ErrNoRoom = errors.New("the machine has too little room for the workload")

// checkRoom returns ErrNoRoom, with what is missing, unless n timers have room in memory and in a directory.
func checkRoom(n int, dir string) error {
	memory, err := rig.Memory("MemAvailable")
	if err != nil {
		return err
	}
	disk, err := rig.FreeDisk(dir)
	if err != nil {
		return err
	}
	for _, c := range []struct {
		what         string
		needed, free int64
	}{{"memory", reserve + int64(n)*memoryPerTimer, memory}, {"disk at " + dir, reserve + int64(n)*diskPerTimer, disk}} {
		if c.free < c.needed {
			const gib = float64(1 << 30)
			return fmt.Errorf("%w: %d timers take %.1f GiB of %s, and %.1f are free", ErrNoRoom, n, float64(c.needed)/gib, c.what, float64(c.free)/gib)
		}
	}
	return nil
}

// during is something that goes on while timers fire. run returns once it is over.
type during struct {
	name string
	run  func(ctx context.Context, values map[string]float64) error
}

// Millions measures timers as they fire while millions of others are pending: before these are set, with nothing else
// going on, and during everything that has to do with all of them. Redis rewrites its append-only file only where that
// is measured.
func (b *Bench) Millions(ctx context.Context, round int, save func(result.Measurement) error) (err error) {
	n := b.Scale.Millions
	if err := checkRoom(n, os.TempDir()); err != nil {
		return err
	}
	x, err := b.startTimerd(ctx, &peer.Timerd{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.Close()) }()
	if err := x.RedisClient.ConfigSet(ctx, "auto-aof-rewrite-percentage", "0").Err(); err != nil {
		return err
	}
	if err := b.besides(ctx, x, MillionsEmpty, round, save); err != nil {
		return err
	}
	if err := b.fill(ctx, x, n, round, save); err != nil {
		return err
	}

	began := time.Now()
	ready, err := x.timerd.Restart(ctx, x.Rig)
	if err != nil {
		return err
	}
	b.logf("timerd was ready %.2f s after its start", ready.Seconds())
	if err := b.firingDuring(ctx, x, round, save, during{MillionsStart, func(ctx context.Context, values map[string]float64) error {
		values[ValueReady] = ready.Seconds()
		err := b.awaitAudit(ctx, x, 0)
		values[ValueTook] = time.Since(began).Seconds() // from the start, not from the first firing
		return err
	}}); err != nil {
		return err
	}

	if err := b.besides(ctx, x, "", round, save); err != nil {
		return err
	}
	m := x.measurement("idle", round)
	if m.Values, m.Usage, err = b.watch(ctx, x.running); err != nil {
		return err
	}
	if err := save(m); err != nil {
		return err
	}
	m = x.measurement(MillionsPage, round)
	m.Values = make(map[string]float64)
	if err := timed(m.Values, func() error { return b.runLs(ctx, x, page) }); err != nil {
		return err
	}
	if err := save(m); err != nil {
		return err
	}
	for _, d := range []during{
		{MillionsAudit, func(ctx context.Context, values map[string]float64) error {
			return timed(values, func() error { return b.auditAfterGap(ctx, x) })
		}},
		{MillionsSave, func(ctx context.Context, values map[string]float64) error { return b.dump(ctx, x, values) }},
		{MillionsRewrite, func(ctx context.Context, values map[string]float64) error { return b.rewrite(ctx, x, values) }},
		{MillionsList, func(ctx context.Context, values map[string]float64) error {
			return timed(values, func() error { return b.runLs(ctx, x, 0) })
		}},
	} {
		if err := b.firingDuring(ctx, x, round, save, d); err != nil {
			return err
		}
	}
	return nil
}

// besides measures the shapes of the scale beside what there is.
func (b *Bench) besides(ctx context.Context, x *timerdRun, prefix string, round int, save func(result.Measurement) error) error {
	for _, shape := range []Shape{b.Scale.Spread, b.Scale.Spike} {
		m := x.measurement(prefix+shape.Name, round)
		if err := b.deliver(ctx, x.running, shape, nil, &m); err != nil {
			return err
		}
		b.logf("%s, %d pending: p50 %.1f ms, p99 %.1f ms, drained in %.0f ms", shape.Name, x.pending, m.Firings.Consumed.P50, m.Firings.Consumed.P99, m.Firings.Drained)
		if err := save(m); err != nil {
			return err
		}
	}
	return nil
}

// fill sets the n timers, and measures what they take.
func (b *Bench) fill(ctx context.Context, x *timerdRun, n, round int, save func(result.Measurement) error) error {
	began := time.Now()
	memory, err := b.memory(ctx, x.running, n, round)
	took := time.Since(began) - aftermath
	if err := errors.Join(err, x.Died()); err != nil {
		return err
	}
	if err := save(memory); err != nil {
		return err
	}
	m := x.measurement(MillionsMemory, round)
	m.Values = map[string]float64{ValueBytes: memory.Values[ValueBytes], ValueRate: float64(n) / took.Seconds()}
	m.Usage = memory.Usage
	for name, of := range map[string][2]string{
		ValueUsed: {"memory", "used_memory"}, ValueResident: {"memory", "used_memory_rss"}, ValueAOF: {"persistence", "aof_current_size"},
	} {
		if m.Values[name], err = stat(ctx, x.RedisClient, of[0], of[1]); err != nil {
			return err
		}
	}
	return save(m)
}

// firingDuring measures the spread timers of the scale again and again while something goes on, which begins when the
// first one of them is due. Of what it measures, the values are with the first round; a later one counts only if it was
// over before that.
func (b *Bench) firingDuring(ctx context.Context, x *timerdRun, round int, save func(result.Measurement) error, d during) error {
	var (
		running sync.WaitGroup
		values  = make(map[string]float64)
		failed  error
		over    = make(chan struct{})
	)
	defer running.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	begin := func() {
		running.Go(func() {
			defer close(over)
			failed = d.run(ctx, values)
		})
	}
	var measured []result.Measurement
	for ended := false; !ended; {
		m := x.measurement(d.name, round)
		if err := b.deliver(ctx, x.running, b.Scale.Spread, begin, &m); err != nil {
			return err
		}
		begin = nil
		select {
		case <-over:
			ended = true
		default:
		}
		if !ended || len(measured) == 0 {
			measured = append(measured, m)
			b.logf("%s: p50 %.1f ms, p99 %.1f ms, max %.1f ms, nothing for %.1f ms", d.name, m.Firings.Consumed.P50, m.Firings.Consumed.P99, m.Firings.Consumed.Max, m.Firings.Gap)
		}
	}
	if failed != nil {
		return fmt.Errorf("%s: %w", d.name, errors.Join(failed, x.Died()))
	}
	b.logf("%s: took %.1f s", d.name, values[ValueTook])
	measured[0].Values = values
	for _, m := range measured {
		if err := save(m); err != nil {
			return err
		}
	}
	return nil
}

// timed puts down how long f took.
func timed(values map[string]float64, f func() error) error {
	began := time.Now()
	err := f()
	values[ValueTook] = time.Since(began).Seconds()
	return err
}

// patience is how long something may take that has to do with all timers.
func (b *Bench) patience() time.Duration {
	const each = 500 * time.Microsecond
	return time.Minute + time.Duration(b.Scale.Millions)*each
}

// awaitAudit waits until timerd has been through more audits that follow a subscription.
func (b *Bench) awaitAudit(ctx context.Context, x *timerdRun, before int) error {
	return rig.Until(ctx, b.patience(), func(ctx context.Context) error {
		audits, err := x.timerd.Audits(ctx)
		if err == nil && audits <= before {
			err = errors.New("the audit is not over")
		}
		return err
	})
}

// auditAfterGap ends timerd's subscription, and waits until the audit is over that follows.
func (b *Bench) auditAfterGap(ctx context.Context, x *timerdRun) error {
	before, err := x.timerd.Audits(ctx)
	if err != nil {
		return err
	}
	if err := x.RedisClient.ClientKillByFilter(ctx, "TYPE", "pubsub").Err(); err != nil {
		return err
	}
	return b.awaitAudit(ctx, x, before)
}

// dump has Redis write a dump, and removes it.
func (b *Bench) dump(ctx context.Context, x *timerdRun, values map[string]float64) error {
	if err := b.fork(ctx, x, "BGSAVE", "rdb_bgsave_in_progress", "rdb_last_bgsave_status", values); err != nil {
		return err
	}
	var err error
	if values[ValueCopied], err = stat(ctx, x.RedisClient, "persistence", "rdb_last_cow_size"); err != nil {
		return err
	}
	settings, err := x.RedisClient.ConfigGet(ctx, "d*").Result()
	if err != nil {
		return err
	}
	path := filepath.Join(settings["dir"], settings["dbfilename"])
	file, err := os.Stat(path)
	if err != nil {
		return err
	}
	values[ValueFile] = float64(file.Size())
	return os.Remove(path)
}

// rewrite has Redis rewrite its append-only file.
func (b *Bench) rewrite(ctx context.Context, x *timerdRun, values map[string]float64) error {
	if err := b.fork(ctx, x, "BGREWRITEAOF", "aof_rewrite_in_progress", "aof_last_bgrewrite_status", values); err != nil {
		return err
	}
	var err error
	if values[ValueCopied], err = stat(ctx, x.RedisClient, "persistence", "aof_last_cow_size"); err != nil {
		return err
	}
	values[ValueFile], err = stat(ctx, x.RedisClient, "persistence", "aof_current_size")
	return err
}

// fork gives a command that has Redis fork, and waits until the child has ended. progress and status are what INFO
// tells of it.
func (b *Bench) fork(ctx context.Context, x *timerdRun, command, progress, status string, values map[string]float64) error {
	if err := timed(values, func() error {
		if err := x.RedisClient.Do(ctx, command).Err(); err != nil {
			return err
		}
		return rig.Until(ctx, b.patience(), func(ctx context.Context) error {
			n, err := stat(ctx, x.RedisClient, "persistence", progress)
			if err == nil && n != 0 {
				err = fmt.Errorf("%s is not over", command)
			}
			return err
		})
	}); err != nil {
		return err
	}
	how, err := info(ctx, x.RedisClient, "persistence", status)
	if err != nil {
		return err
	}
	if how != "ok" {
		return fmt.Errorf("%s: %s", command, how)
	}
	micros, err := stat(ctx, x.RedisClient, "stats", "latest_fork_usec")
	values[ValueFork] = micros / 1000
	return err
}

// page is how many timers `timerd ls` lists by default.
const page = 100

// runLs runs `timerd ls`, with a limit or 0 for all, and sees that it lists as many.
func (b *Bench) runLs(ctx context.Context, x *timerdRun, limit int) error {
	var lines lineCount
	ls := x.ls(ctx, b.Timerd, limit)
	ls.Stdout = &lines
	if err := ls.Run(); err != nil {
		return fmt.Errorf("timerd ls: %w", err)
	}
	want := limit
	if limit == 0 {
		want = int(x.pending)
	}
	if int(lines) < min(want, int(x.pending)) {
		return fmt.Errorf("timerd ls shows %d lines of %d timers", lines, want)
	}
	return nil
}

// lineCount counts the lines that are written to it.
type lineCount int

func (c *lineCount) Write(text []byte) (int, error) {
	*c += lineCount(bytes.Count(text, []byte("\n")))
	return len(text), nil
}
