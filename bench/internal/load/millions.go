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

// Names of the measurements with millions of pending timers; the report uses them too. A measurement with only the name
// of the shape has no other operation beside it.
const (
	MillionsPrefix  = "millions: "
	MillionsEmpty   = MillionsPrefix + "empty, " // before the pending timers are set; the name of a shape follows
	MillionsMemory  = MillionsPrefix + "memory"
	MillionsStart   = MillionsPrefix + "audits at timerd's start"
	MillionsAudit   = MillionsPrefix + "audit after a gap"
	MillionsSave    = MillionsPrefix + "BGSAVE"
	MillionsRewrite = MillionsPrefix + "BGREWRITEAOF"
	MillionsList    = MillionsPrefix + "`timerd ls --limit 0`"
	MillionsPage    = MillionsPrefix + "`timerd ls`"
)

// Names of the values of these measurements.
const (
	ValueTook     = "tookS"
	ValueReady    = "readyS"
	ValueFork     = "forkMs"
	ValueCopied   = "copiedBytes" // pages that Redis wrote to while it shared them with its child
	ValueFile     = "fileBytes"
	ValueUsed     = "usedMemoryBytes"
	ValueResident = "usedMemoryRSSBytes"
	ValueAOF      = "aofBytes"
)

// Upper bounds for a pending timer: the memory of Redis with copied pages during a fork, and the disk space of the
// append-only file, of its replacement and of a dump. The reserve is for everything else.
const (
	memoryPerTimer = 800
	diskPerTimer   = 1500
	reserve        = 1 << 30
)

// ErrNoRoom means that a workload needs more memory or disk space than the machine has.
var ErrNoRoom = errors.New("the machine has too little room for the workload")

// checkRoom returns ErrNoRoom, with the missing amount, unless n timers fit into memory and into a directory's disk.
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
	}{{"memory", reserve + int64(n)*memoryPerTimer, memory},
		{"disk at " + dir, reserve + int64(n)*diskPerTimer, disk}} {
		if c.free < c.needed {
			const gib = float64(1 << 30)
			return fmt.Errorf("%w: %d timers take %.1f GiB of %s, and %.1f are free", ErrNoRoom, n,
				float64(c.needed)/gib, c.what, float64(c.free)/gib)
		}
	}
	return nil
}

// during is an operation that runs while timers fire. run returns when the operation is over.
type during struct {
	name string
	run  func(ctx context.Context, values map[string]float64) error
}

// Millions measures firing timers while millions of others are pending: before the pending ones are set, without any
// other operation, and during each operation on all of them. Redis rewrites its append-only file only for the
// measurement of that.
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
	if err := b.firingDuring(ctx, x, round, save, during{MillionsStart,
		func(ctx context.Context, values map[string]float64) error {
			values[ValueReady] = ready.Seconds()
			err := b.awaitAudit(ctx, x, 0)
			values[ValueTook] = time.Since(began).Seconds() // counted from the start, not from the first firing
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
		{MillionsRewrite, func(ctx context.Context, values map[string]float64) error {
			return b.rewrite(ctx, x, values)
		}},
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

// besides measures the shapes of the scale beside the pending timers.
func (b *Bench) besides(ctx context.Context, x *timerdRun, prefix string, round int,
	save func(result.Measurement) error) error {
	for _, shape := range []Shape{b.Scale.Spread, b.Scale.Spike} {
		m := x.measurement(prefix+shape.Name, round)
		if err := b.deliver(ctx, x.running, shape, nil, &m); err != nil {
			return err
		}
		b.logf("%s, %d pending: p50 %.1f ms, p99 %.1f ms, drained in %.0f ms", shape.Name, x.pending,
			m.Firings.Consumed.P50, m.Firings.Consumed.P99, m.Firings.Drained)
		if err := save(m); err != nil {
			return err
		}
	}
	return nil
}

// fill sets the n pending timers, and measures their memory and disk space.
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
		ValueUsed: {"memory", "used_memory"}, ValueResident: {"memory", "used_memory_rss"},
		ValueAOF: {"persistence", "aof_current_size"},
	} {
		if m.Values[name], err = stat(ctx, x.RedisClient, of[0], of[1]); err != nil {
			return err
		}
	}
	return save(m)
}

// firingDuring measures the spread timers of the scale again and again during an operation. The operation begins when
// the first timer is due. The first round has the operation's values. A later round counts only if it ended before the
// operation.
func (b *Bench) firingDuring(ctx context.Context, x *timerdRun, round int, save func(result.Measurement) error,
	d during) error {
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
			b.logf("%s: p50 %.1f ms, p99 %.1f ms, max %.1f ms, nothing for %.1f ms", d.name, m.Firings.Consumed.P50,
				m.Firings.Consumed.P99, m.Firings.Consumed.Max, m.Firings.Gap)
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

// timed stores the duration of f as a value.
func timed(values map[string]float64, f func() error) error {
	began := time.Now()
	err := f()
	values[ValueTook] = time.Since(began).Seconds()
	return err
}

// patience bounds an operation on all timers.
func (b *Bench) patience() time.Duration {
	const each = 500 * time.Microsecond
	return time.Minute + time.Duration(b.Scale.Millions)*each
}

// awaitAudit waits until timerd has made further audits after a subscription.
func (b *Bench) awaitAudit(ctx context.Context, x *timerdRun, before int) error {
	return rig.Until(ctx, b.patience(), func(ctx context.Context) error {
		audits, err := x.timerd.Audits(ctx)
		if err == nil && audits <= before {
			err = errors.New("the audit is not over")
		}
		return err
	})
}

// auditAfterGap ends timerd's subscription, and waits for the end of the audit that follows.
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

// dump makes Redis write a dump, and removes the file.
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

// rewrite makes Redis rewrite its append-only file.
func (b *Bench) rewrite(ctx context.Context, x *timerdRun, values map[string]float64) error {
	if err := b.fork(ctx, x, "BGREWRITEAOF", "aof_rewrite_in_progress", "aof_last_bgrewrite_status",
		values); err != nil {
		return err
	}
	var err error
	if values[ValueCopied], err = stat(ctx, x.RedisClient, "persistence", "aof_last_cow_size"); err != nil {
		return err
	}
	values[ValueFile], err = stat(ctx, x.RedisClient, "persistence", "aof_current_size")
	return err
}

// fork runs a command that makes Redis fork, and waits until the child has ended. progress and status are fields of
// INFO for that command.
func (b *Bench) fork(ctx context.Context, x *timerdRun, command, progress, status string,
	values map[string]float64) error {
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

// page is the default number of timers listed by `timerd ls`.
const page = 100

// runLs runs `timerd ls`, with a limit, or with 0 for all timers. It returns an error unless the list has as many
// timers as it should.
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

// lineCount is a writer that counts lines.
type lineCount int

func (c *lineCount) Write(text []byte) (int, error) {
	*c += lineCount(bytes.Count(text, []byte("\n")))
	return len(text), nil
}
