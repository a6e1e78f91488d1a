// Timerd fires Redis keys as NATS events when their time has come.
//
//	timerd serve      run it, configured by the environment
//	timerd dev        try it: its own Redis and NATS, nothing to set up
//	timerd doctor     check the servers and print what to fix
//	timerd health     ask a running one whether it is ready
//
// and set, get, cancel, ls, forecast, watch and dead for the timers themselves. The exit code is 0, 1 for a failure, or
// 2 for bad usage or configuration.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/config"
	"github.com/timerd-io/timerd/internal/connect"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	// A write to a closed pipe must fail, and not end the program before it removes its servers and files.
	signal.Ignore(syscall.SIGPIPE)
	c, _ := config.Read(config.SectionLog) // each command reads it again, and reports its faults
	log := c.Log.NewLogger(os.Stderr)
	slog.SetDefault(log) // for libraries that log by themselves
	redis.SetLogger(connect.RedisLogger{Logger: log})
	os.Exit(run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run runs a command and returns its exit code. The environment is the process's own. A closed pipe on standard output
// ends the command without a failure: the reader has enough.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(pipe{stdout})
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	var said exitCode
	var usage *usageError
	var faults *config.Error
	switch {
	case err == nil, errors.Is(err, errReaderGone):
		return exitOK
	case errors.As(err, &said):
		return int(said)
	}
	complain(stderr, err)
	if errors.As(err, &usage) || errors.As(err, &faults) {
		return exitUsage
	}
	return exitFailed
}

// complain prints why the program ends, as JSON if the log is JSON.
func complain(stderr io.Writer, err error) {
	usage, isUsage := errors.AsType[*usageError](err)
	faults, isConfig := errors.AsType[*config.Error](err)
	c, _ := config.Read(config.SectionLog) // its faults are in err already
	log := c.Log.NewLogger(stderr)
	switch {
	case c.Log.JSON && isConfig:
		for _, fault := range faults.Faults {
			log.Error("the configuration has a fault", "err", fault)
		}
	case c.Log.JSON:
		log.Error("timerd ends", "err", err)
	case isUsage:
		fmt.Fprintf(stderr, "timerd: %v\nTry: %s --help\n", err, usage.command)
	default:
		fmt.Fprintf(stderr, "timerd: %v\n", err)
	}
}
