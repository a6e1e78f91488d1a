// Torture runs timerd under random faults and judges the results. docs/inside/torture.md explains it.
//
//	torture run -seed 1 -minutes 2 -shape several
//	torture judge FILE
//
// The exit code is 0, 1 for a broken promise or a run that failed, or 2 for bad usage.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/timerd-io/timerd/torture/internal/checker"
	"github.com/timerd-io/timerd/torture/internal/history"
	"github.com/timerd-io/timerd/torture/internal/nemesis"
	"github.com/timerd-io/timerd/torture/internal/report"
	"github.com/timerd-io/timerd/torture/internal/servers"
)

// Exit codes.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	if was, err := servers.BeNATS(); was {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(exitFailed)
		}
		os.Exit(exitOK)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	os.Exit(command(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// command is the program without its process.
func command(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	name := "run"
	if len(args) > 0 && args[0] != "" && args[0][0] != '-' {
		name, args = args[0], args[1:]
	}
	var r *checker.Report
	var err error
	switch name {
	case "run":
		r, err = runCommand(ctx, args, stderr)
	case "judge":
		r, err = judgeCommand(args)
	default:
		err = usagef("%q is no command: want run or judge FILE", name)
	}
	var usage *usageError
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitOK
	case errors.As(err, &usage):
		fmt.Fprintf(stderr, "torture: %v\n", err)
		return exitUsage
	case err != nil:
		fmt.Fprintf(stderr, "torture: %v\n", err)
		return exitFailed
	}
	if err := report.Write(stdout, r); err != nil {
		fmt.Fprintf(stderr, "torture: %v\n", err)
		return exitFailed
	}
	if !passed(r) {
		return exitFailed
	}
	return exitOK
}

// passed reports whether timerd kept all promises and recovered each time, and the schedule was empty at the end.
func passed(r *checker.Report) bool {
	return len(r.Violations) == 0 && len(r.Unready) == 0 && r.Drained
}

// usageError is a bad command line.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

func usagef(format string, args ...any) error { return &usageError{fmt.Sprintf(format, args...)} }

func runCommand(ctx context.Context, args []string, stderr io.Writer) (*checker.Report, error) {
	flags := flag.NewFlagSet("torture run", flag.ContinueOnError)
	flags.SetOutput(stderr)
	c := config{log: slog.New(slog.NewTextHandler(stderr, nil))}
	flags.Uint64Var(&c.seed, "seed", uint64(time.Now().UnixNano()), "decides the faults and the lives of the keys")
	minutes := flags.Float64("minutes", 2, "how long faults are injected")
	shape := flags.String("shape", string(servers.Standalone), "standalone, several, sentinel or cluster")
	flags.StringVar(&c.timerd, "timerd", "",
		"a program to run, with the machine's clock (default: one is built whose clock can be stepped)")
	flags.Float64Var(&c.rate, "rate", 60, "keys per second")
	flags.Func("without", "a kind of fault to leave out; may be given again", func(kind string) error {
		if !slices.Contains(nemesis.Kinds(), kind) {
			return fmt.Errorf("want one of %q", nemesis.Kinds())
		}
		c.without = append(c.without, kind)
		return nil
	})
	flags.StringVar(&c.messages, "messages", "",
		"a file for the messages of the streams at the end, a line of JSON each")
	flags.DurationVar(&c.maxDelay, "max-delay", 20*time.Second, "the longest delay of a timer")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil, err
		}
		return nil, usagef("%v", err)
	}
	c.shape, c.length = servers.Shape(*shape), time.Duration(*minutes*float64(time.Minute))
	switch {
	case flags.NArg() > 0:
		return nil, usagef("unexpected argument %q", flags.Arg(0))
	case c.shape.Timerds() == 0:
		return nil, usagef("-shape %q: want one of %v", *shape, servers.Shapes())
	case c.length <= 0 || c.rate <= 0 || c.maxDelay < time.Second:
		return nil, usagef("-minutes and -rate must be greater than 0, -max-delay at least 1s")
	}
	dir, err := os.MkdirTemp("", "timerd-torture-")
	if err != nil {
		return nil, err
	}
	c.dir = dir
	r, file, err := run(ctx, c)
	if err == nil && passed(r) {
		return r, os.RemoveAll(dir)
	}
	fmt.Fprintf(stderr, "torture: the logs of timerd are in %s\n", dir)
	if err == nil {
		fmt.Fprintf(stderr, "torture: judge again with: bin/torture judge %s\n", file)
	}
	return r, err
}

func judgeCommand(args []string) (r *checker.Report, err error) {
	if len(args) != 1 {
		return nil, usagef("judge wants one file")
	}
	f, err := os.Open(args[0])
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	h, err := history.Read(f)
	if err != nil {
		return nil, err
	}
	return checker.Judge(h), nil
}
