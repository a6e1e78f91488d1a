package peer

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/timerd-io/timerd/bench/internal/firing"
	"github.com/timerd-io/timerd/bench/internal/rig"
	"github.com/timerd-io/timerd/internal/devserver"
)

// RoleProducer is the role of a process that only sets timers.
const RoleProducer = "producer"

// bullmq is BullMQ, a job queue for Node.js on Redis. One Node.js process sets jobs, and another one works on them.
type bullmq struct {
	settings []devserver.RedisOption

	to   io.Writer      // for the timers to set: a line each, then an empty line
	said *bufio.Scanner // an answer to each empty line
}

func bullmqSpecs() []Spec {
	spec := func(name, title, settings string, fast bool, conf ...devserver.RedisOption) Spec {
		return Spec{
			Name: name, Title: title, Settings: settings, Redis: conf, OnRedis: true, Preload: true, ArmRate: 3_000,
			Missing: bullmqMissing,
			Variant: !fast,
			New:     func(s Spec) System { return &bullmq{settings: s.Redis} },
		}
	}
	return []Spec{
		spec("bullmq", "BullMQ, Redis hz 10", "concurrency 100, removeOnComplete; jobs set by addBulk", false,
			devserver.Directive("notify-keyspace-events", "")),
		spec("bullmq-hz100", "BullMQ, Redis hz 100", "as bullmq; a blocked client's time runs out at Redis's ticks",
			true,
			devserver.Directive("notify-keyspace-events", ""), devserver.Directive("hz", "100")),
	}
}

// bullmqScript returns the path of bullmq.js: beside the sources or, under `make bench`, in the directory bench/bullmq.
func bullmqScript() (string, error) {
	for _, dir := range []string{"bullmq", "bench/bullmq"} {
		if _, err := os.Stat(filepath.Join(dir, "node_modules", "bullmq")); err == nil {
			return filepath.Abs(filepath.Join(dir, "bullmq.js"))
		}
	}
	return "", errors.New("no bench/bullmq/node_modules: `bench/deps.sh bullmq` installs BullMQ with npm")
}

func bullmqMissing() error {
	if _, err := exec.LookPath("node"); err != nil {
		return errors.New("no node in PATH: install Node.js 20 or later with npm, then run bench/deps.sh bullmq")
	}
	_, err := bullmqScript()
	return err
}

func (b *bullmq) Start(ctx context.Context, r *rig.Rig, fired func(firing.Firing)) error {
	rdb, err := r.Redis(ctx, b.settings...)
	if err != nil {
		return err
	}
	script, err := bullmqScript()
	if err != nil {
		return err
	}
	node := func(mode string) *exec.Cmd {
		return exec.CommandContext(context.WithoutCancel(ctx), "node", script, mode, rdb.Options().Addr)
	}
	if err := b.startProducer(r, node("set")); err != nil {
		return err
	}
	return startReporting(ctx, r, rig.RoleWorker, node("work"), fired)
}

// startProducer starts the process that sets jobs. Its CPU time does not count with the worker's.
func (b *bullmq) startProducer(r *rig.Rig, cmd *exec.Cmd) error {
	stdin, to, err := os.Pipe()
	if err != nil {
		return err
	}
	from, stdout, err := os.Pipe()
	if err != nil {
		return errors.Join(err, stdin.Close(), to.Close())
	}
	cmd.Stdin, cmd.Stdout = stdin, stdout
	_, err = r.Start(RoleProducer, cmd)
	r.Defer(func() error { return errors.Join(to.Close(), from.Close()) })
	b.to, b.said = to, bufio.NewScanner(from)
	return errors.Join(err, stdin.Close(), stdout.Close())
}

func (b *bullmq) Arm(_ context.Context, timers []firing.Timer) error {
	w := bufio.NewWriterSize(b.to, 1<<16)
	for _, t := range timers {
		fmt.Fprintf(w, "%d %d %s\n", t.N, t.Due.UnixMilli(), t.Payload())
	}
	fmt.Fprintln(w)
	if err := w.Flush(); err != nil {
		return err
	}
	if !b.said.Scan() {
		return errors.Join(errors.New("the process that sets jobs in BullMQ has ended"), b.said.Err())
	}
	if answer := strings.TrimSpace(b.said.Text()); answer != "set" {
		return fmt.Errorf("the process that sets jobs in BullMQ wrote %q", answer)
	}
	return nil
}
