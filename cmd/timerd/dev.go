package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/config"
	"github.com/timerd-io/timerd/internal/connect"
	"github.com/timerd-io/timerd/internal/devserver"
	"github.com/timerd-io/timerd/internal/standalone"
	"github.com/timerd-io/timerd/keys"
)

// devReady bounds the time until timerd is ready.
const devReady = 20 * time.Second

// errNoRedis names the ways to get a Redis for dev.
var errNoRedis = errors.New(`neither redis-server nor valkey-server is in PATH; timerd dev runs a private one. Install it:
  Debian, Ubuntu  sudo apt-get install redis-server
  Fedora          sudo dnf install valkey
  macOS           brew install redis
in version 7.0 or later; or run timerd serve with the TIMERD_REDIS_URL of an existing one`)

// devFlags are the flags of timerd dev; a port 0 is a free one.
type devFlags struct {
	redisServer         string // the program; "" for the one in PATH
	redisPort, natsPort int
	httpAddr            string
	consoleAddr         string
	noSamples           bool
	virtual             bool   // the clock of due times is moved by timerd advance
	deliver             string // the file of endpoints; "" for none
}

func newDev() *cobra.Command {
	var flags devFlags
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Try timerd with a Redis and a NATS of its own",
		Long: `Run timerd with a private redis-server and a NATS server within the process, on free ports of
127.0.0.1, for every key of four parts, and with the console, its web page. It sets a few timers,
prints how to set more, and prints each firing, except those of the app demo, which only fill the
console. Ctrl-C ends it and deletes everything. It needs redis-server or valkey-server in PATH, or
--redis-server.

With --virtual its clock of due times is a virtual one, for tests: timerd advance moves it, and all
that is due on the way fires in order. Nothing but this timerd may serve these servers then. With
--deliver it calls the endpoints of a file, as timerd deliver does, by the same clock.

It reads TIMERD_RETRY and all variables except those of the two servers.`,
		Example: `  timerd dev
  timerd dev --redis-port 6379 --nats-port 4222
  timerd dev --virtual --deliver webhooks.yaml`,
		Args: arguments(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			for name, port := range map[string]int{"redis-port": flags.redisPort, "nats-port": flags.natsPort} {
				if port < 0 || port > 65535 {
					return usagef(cmd, "--%s=%d: want a port, or 0 for a free one", name, port)
				}
			}
			if !config.IsHostPort(flags.httpAddr) {
				return usagef(cmd, "--http-addr=%s: want host:port", flags.httpAddr)
			}
			if flags.consoleAddr != "off" && !config.IsHostPort(flags.consoleAddr) {
				return usagef(cmd, "--console-addr=%s: want host:port, or off", flags.consoleAddr)
			}
			return dev(cmd, flags)
		},
	}
	cmd.Flags().StringVar(&flags.redisServer, "redis-server", "",
		"program to run as Redis; default: redis-server or valkey-server, from PATH")
	cmd.Flags().IntVar(&flags.redisPort, "redis-port", 0, "port of Redis; 0: a free one")
	cmd.Flags().IntVar(&flags.natsPort, "nats-port", 0, "port of NATS; 0: a free one")
	cmd.Flags().StringVar(&flags.httpAddr, "http-addr", "127.0.0.1:0",
		"address of /healthz, /readyz and /metrics; port 0: a free one")
	cmd.Flags().StringVar(&flags.consoleAddr, "console-addr", "127.0.0.1:0",
		"address of the console, the web page; port 0: a free one; off: none")
	cmd.Flags().BoolVar(&flags.virtual, "virtual", false, "have a virtual clock, and set no timers")
	cmd.Flags().StringVar(&flags.deliver, "deliver", "", "call the endpoints of this file: webhooks")
	cmd.Flags().BoolVar(&flags.noSamples, "no-samples", false, "set no timers: neither samples nor the demo")
	return cmd
}

// dev runs everything until the command's context ends or a part of it fails.
func dev(cmd *cobra.Command, flags devFlags) (err error) {
	for name, port := range map[string]int{"--redis-port": flags.redisPort, "--nats-port": flags.natsPort} {
		if port == 0 {
			continue
		}
		if err := checkFree(name, port); err != nil {
			return err
		}
	}
	webhooks, err := openWebhooks(flags.deliver)
	if err != nil {
		return refuseEndpoints(cmd, err)
	}
	in, err := standalone.Open(cmd.Context(), standalone.Options{
		RedisServer: flags.redisServer, RedisPort: flags.redisPort, NATSPort: flags.natsPort,
		HTTPAddr: flags.httpAddr, ConsoleAddr: flags.consoleAddr, Virtual: flags.virtual,
	})
	if err != nil {
		return explainDev(err, flags)
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	log := announce(cmd, in.Config)
	beside := []func(context.Context) error{func(ctx context.Context) error {
		return demonstrate(ctx, cmd.OutOrStdout(), in.Config, in.Redis, flags, webhooks)
	}}
	if webhooks != nil {
		beside = append(beside, func(ctx context.Context) error { return webhooks.run(ctx, in, log) })
	}
	err = in.Run(cmd.Context(), buildText(), log, beside...)
	if cmd.Context().Err() != nil && errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// explainDev names the ways to get a Redis, and in other errors the flags in place of variables.
func explainDev(err error, flags devFlags) error {
	if errors.Is(err, devserver.ErrNoRedis) {
		return errNoRedis
	}
	named := strings.NewReplacer("TIMERD_HTTP_ADDR: ", "--http-addr="+flags.httpAddr+": ", "TIMERD_CONSOLE_ADDR: ",
		"--console-addr="+flags.consoleAddr+": ").Replace(err.Error())
	if named != err.Error() {
		return errors.New(named)
	}
	return err
}

// demonstrate prints how to set timers, sets a few itself, and prints the firings until ctx ends.
func demonstrate(ctx context.Context, w io.Writer, c config.Config, server *devserver.Redis,
	flags devFlags, webhooks *devWebhooks) (err error) {
	samples := !flags.noSamples && !flags.virtual
	if err := awaitReady(ctx, c.Service.HTTPAddr); err != nil {
		return err
	}
	conf := c.NATS.FromOutside()
	natsURL := conf.URL
	js, err := connect.Connector{Logger: slog.New(slog.DiscardHandler)}.JetStream(ctx, conf)
	if err != nil {
		return fmt.Errorf("connect to the embedded NATS server: %w", err)
	}
	defer js.Conn().Close()
	if webhooks != nil {
		if err := webhooks.await(ctx, js, c); err != nil {
			return err
		}
	}
	rdb := connect.NewRedisClient(c.Redis)
	defer func() { _ = rdb.Close() }()

	lively, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	defer func() {
		stop()
		err = errors.Join(err, <-ended)
	}()
	if samples {
		go func() { ended <- demo{client.New(rdb), js, c}.run(lively) }()
	} else {
		close(ended)
	}

	all := watched{
		stream:  c.NATS.Streams.FiredStream(),
		subject: keys.SubjectAll(c.NATS.Streams.Prefix, keys.Fired),
		ready: func() error {
			_, err := fmt.Fprintf(w, devBanner, redisCLI(server.Program()), server.Port(), natsURL,
				c.NATS.Streams.SubjectPrefix(),
				devSettings(c, server.URL(0), natsURL), os.Args[0], c.Service.HTTPAddr, devConsole(c))
			if err == nil && samples {
				err = setSamples(ctx, w, rdb)
			}
			if err == nil && flags.virtual {
				_, err = fmt.Fprintf(w, "\nIts clock is virtual. Move it:\n\n  %s advance 72h\n", os.Args[0])
			}
			if err == nil {
				_, err = fmt.Fprint(w, "\nEach firing: due time, lateness, key, attempt, trigger, payload.\n\n")
			}
			return err
		},
	}
	table := newFirings(w)
	return watch(ctx, js, all, func(data []byte) error {
		if e, err := event.Parse(data); err == nil && e.Key.App == demoApp {
			return nil
		}
		return table.show(data)
	})
}

const devBanner = `timerd is running with a Redis and a NATS of its own. Set a timer:

  %[1]s -p %[2]d SET shop:order:timeout:42 '{"order":42}' EX 5
  %[1]s -p %[2]d FCALL timer_set 1 shop:order:timeout:43 '{"order":43}' PX 5000

Consume the events from another terminal:

  nats -s %[3]s sub '%[4]s.fired.>'

Or look at the timers and their firings:

%[5]s
  %[6]s watch
  %[6]s ls
  %[6]s status
  %[6]s doctor

%[8]sMetrics are at http://%[7]s/metrics. Ctrl-C ends it and deletes everything.
`

// devConsole returns a line with the console's address.
func devConsole(c config.Config) string {
	if c.Console.Addr == "" {
		return ""
	}
	return "The console is at http://" + c.Console.Addr + "/\n"
}

// redisCLI returns the name of a command line client in PATH, redis-cli or valkey-cli. It prefers the one made for the
// server.
func redisCLI(server string) string {
	names := []string{"redis-cli", "valkey-cli"}
	if strings.HasPrefix(filepath.Base(server), "valkey") {
		slices.Reverse(names)
	}
	for _, name := range names {
		if _, err := exec.LookPath(name); err == nil {
			return name
		}
	}
	return names[0]
}

// devSettings returns the shell commands with which timerd's other commands find dev's servers.
func devSettings(c config.Config, redisURL, natsURL string) string {
	settings := []string{"TIMERD_NAMESPACES='*'", "TIMERD_REDIS_URL=" + redisURL, "TIMERD_NATS_URL=" + natsURL}
	names := c.NATS.Streams.Names
	if prefix := names.SubjectPrefix(); prefix != keys.DefaultPrefix {
		settings = append(settings, "TIMERD_SUBJECT_PREFIX="+prefix)
	}
	if stream := names.FiredStream(); stream != keys.DefaultStream {
		settings = append(settings, "TIMERD_STREAM="+stream)
	}
	return "  export " + strings.Join(settings, "\n  export ")
}

// setSamples sets a timer in each of the possible ways.
func setSamples(ctx context.Context, w io.Writer, rdb redis.UniversalClient) error {
	plain := rdb.Set(ctx, "dev:sample:plain:1", `{"set":"with SET"}`, 2*time.Second).Err()
	_, explicit := client.New(rdb).Set(ctx, "dev:sample:explicit:2", []byte(`{"set":"with timer_set"}`),
		client.After(3500*time.Millisecond))
	_, hash := rdb.TxPipelined(ctx, func(tx redis.Pipeliner) error {
		tx.HSet(ctx, "dev:sample:hash:3", "set", "with HSET and EXPIRE")
		tx.Expire(ctx, "dev:sample:hash:3", 5*time.Second)
		return nil
	})
	if err := errors.Join(plain, explicit, hash); err != nil {
		return fmt.Errorf("set the samples: %w", err)
	}
	_, err := fmt.Fprint(w,
		"\nThree samples are set, to fire within 5 seconds. Those of the app demo, which keep the console lively, "+
			"are not printed; one of them\nbecomes a dead letter on purpose. --no-samples leaves out both.\n")
	return err
}

// awaitReady waits until timerd is ready.
func awaitReady(ctx context.Context, addr string) error {
	err := devserver.Until(ctx, devReady, func() error { return checkReady(ctx, addr) })
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("timerd was not ready within %v: %w", devReady, err)
	}
	return err
}

// checkFree returns an error that names the flag if somebody listens on a port of 127.0.0.1.
func checkFree(flag string, port int) error {
	l, err := net.Listen("tcp", devserver.Address(port))
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("%s=%d is in use; choose another port, or 0 for a free one", flag, port)
	case err != nil:
		return fmt.Errorf("%s=%d: %w", flag, port, err)
	}
	return l.Close()
}
