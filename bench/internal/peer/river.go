package peer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/timerd-io/timerd/bench/internal/firing"
	"github.com/timerd-io/timerd/bench/internal/rig"
	"github.com/timerd-io/timerd/internal/devserver"
)

const workerRiver = "river"

// riverSystem is River, a job queue for Go on PostgreSQL.
type riverSystem struct {
	tuned  bool
	client *river.Client[pgx.Tx]
}

// riverTimer is a job.
type riverTimer struct {
	N   int64  `json:"n"`
	Pad string `json:"pad"`
}

// Kind implements river.JobArgs.
func (riverTimer) Kind() string { return "timer" }

func riverSpecs() []Spec {
	spec := func(name, title, settings string, tuned bool) Spec {
		return Spec{
			Name: name, Title: title, Settings: settings, Preload: true, ArmRate: 5_000, Missing: postgresMissing,
			Variant: !tuned,
			New:     func(Spec) System { return &riverSystem{tuned: tuned} },
		}
	}
	return []Spec{
		spec("river", "River on PostgreSQL, defaults",
			"MaxWorkers 100 as in its README; PostgreSQL's defaults; jobs fetched every second", false),
		spec("river-tuned", "River on PostgreSQL, tuned", "MaxWorkers 1000, FetchCooldown and FetchPollInterval 10 ms",
			true),
	}
}

// postgres returns the path of a program of the newest PostgreSQL, in Debian's directories or in PATH.
func postgres(program string) (string, error) {
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/" + program)
	if err == nil && len(found) > 0 {
		return found[len(found)-1], nil
	}
	return exec.LookPath(program)
}

func postgresMissing() error {
	for _, program := range []string{"initdb", "postgres"} {
		if _, err := postgres(program); err != nil {
			return errors.New("no PostgreSQL: `bench/deps.sh postgresql` installs Debian's package")
		}
	}
	return nil
}

// startPostgres starts a PostgreSQL and returns its URL. PostgreSQL refuses to run as root; then it runs as the user
// postgres of Debian's package.
func startPostgres(ctx context.Context, r *rig.Rig) (string, error) {
	dir, err := r.Subdir("postgresql")
	if err != nil {
		return "", err
	}
	var as []string
	if os.Getuid() == 0 {
		owner, err := user.Lookup("postgres")
		if err != nil {
			return "", err
		}
		uid, err1 := strconv.Atoi(owner.Uid)
		gid, err2 := strconv.Atoi(owner.Gid)
		if err := errors.Join(err1, err2, os.Chown(dir, uid, gid)); err != nil {
			return "", err
		}
		as = []string{"setpriv", "--reuid=" + owner.Uid, "--regid=" + owner.Gid, "--clear-groups"}
	}
	command := func(program string, args ...string) (*exec.Cmd, error) {
		path, err := postgres(program)
		if err != nil {
			return nil, err
		}
		line := slices.Concat(as, []string{path}, args)
		cmd := exec.CommandContext(context.WithoutCancel(ctx), line[0], line[1:]...)
		cmd.Dir = dir
		return cmd, nil
	}
	data := filepath.Join(dir, "data")
	initdb, err := command("initdb", "-D", data, "-U", "bench", "-A", "trust", "-E", "UTF8", "--no-sync")
	if err != nil {
		return "", err
	}
	if out, err := initdb.CombinedOutput(); err != nil {
		return "", fmt.Errorf("initdb: %w: %s", err, out)
	}
	port, err := devserver.FreePort()
	if err != nil {
		return "", err
	}
	server, err := command("postgres", "-D", data, "-h", "127.0.0.1", "-p", strconv.Itoa(port), "-k", dir)
	if err != nil {
		return "", err
	}
	if _, err := r.Start("postgresql", server); err != nil {
		return "", err
	}
	url := fmt.Sprintf("postgres://bench@%s/postgres?pool_max_conns=40", devserver.Address(port))
	return url, rig.Until(ctx, time.Minute, func(ctx context.Context) error {
		connection, err := pgx.Connect(ctx, fmt.Sprintf("postgres://bench@%s/postgres", devserver.Address(port)))
		if err != nil {
			return errors.Join(err, r.Died())
		}
		return connection.Close(ctx)
	})
}

func (s *riverSystem) Start(ctx context.Context, r *rig.Rig, fired func(firing.Firing)) error {
	url, err := startPostgres(ctx, r)
	if err != nil {
		return err
	}
	pool, err := pgxpool.New(context.WithoutCancel(ctx), url)
	if err != nil {
		return err
	}
	r.Defer(func() error { pool.Close(); return nil })
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), &rivermigrate.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return err
	}
	if s.client, err = river.NewClient(riverpgxv5.New(pool), &river.Config{}); err != nil {
		return err
	}
	return startWorker(ctx, r, rig.RoleWorker, fired, workerRiver, url, strconv.FormatBool(s.tuned))
}

func (s *riverSystem) Arm(ctx context.Context, timers []firing.Timer) error {
	return inParallel(ctx, timers, 4, func(ctx context.Context, part []firing.Timer) error {
		jobs := make([]river.InsertManyParams, len(part))
		for i, t := range part {
			pad := len(t.Payload()) - len(fmt.Sprintf(`{"n":%d,"pad":""}`, t.N))
			jobs[i] = river.InsertManyParams{Args: riverTimer{N: t.N, Pad: fmt.Sprintf("%0*d", pad, 0)},
				InsertOpts: &river.InsertOpts{ScheduledAt: t.Due}}
		}
		_, err := s.client.InsertManyFast(ctx, jobs)
		return err
	})
}

// riverWorker works on jobs. Its arguments are the URL of PostgreSQL, and the word tuned or nothing.
func riverWorker(ctx context.Context, args []string, report *firing.Reporter) error {
	pool, err := pgxpool.New(ctx, args[0])
	if err != nil {
		return err
	}
	defer pool.Close()
	workers := river.NewWorkers()
	river.AddWorker(workers, river.WorkFunc(func(_ context.Context, job *river.Job[riverTimer]) error {
		return report.Fired(firing.Firing{N: job.Args.N, Received: time.Now()})
	}))
	cfg := &river.Config{
		Queues:  map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 100}},
		Workers: workers, Logger: slog.New(slog.NewTextHandler(os.Stderr,
			&slog.HandlerOptions{Level: slog.LevelError})),
	}
	if args[1] == strconv.FormatBool(true) {
		cfg.Queues[river.QueueDefault] = river.QueueConfig{MaxWorkers: 1000}
		cfg.FetchCooldown, cfg.FetchPollInterval = 10*time.Millisecond, 10*time.Millisecond
	}
	client, err := river.NewClient(riverpgxv5.New(pool), cfg)
	if err != nil {
		return err
	}
	if err := client.Start(ctx); err != nil {
		return err
	}
	if err := report.Ready(); err != nil {
		return err
	}
	<-ctx.Done()
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	return client.Stop(stop)
}
