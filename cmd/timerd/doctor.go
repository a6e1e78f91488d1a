package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/timerd-io/timerd/internal/doctor"
	"github.com/timerd-io/timerd/schedule"
)

// doctorTimeout bounds all checks together.
const doctorTimeout = 30 * time.Second

// Names of the checks that are made here.
const (
	checkConfiguration = "configuration"
	checkRedis         = "redis"
	checkNATS          = "nats"
)

func newDoctor() *cobra.Command {
	var asJSON bool
	var key string
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check the servers and say what to mend",
		Long: `Check the configuration, Redis and NATS, and say what to mend. Each line is

  ok    as it should be
  warn  timerd works, but keeps less than it could
  fail  timerd does not start, or does not keep its guarantees

The exit code is 0 only without fail. Nothing is changed. Run it with the environment of timerd itself.

With --key, nothing is checked: it prints when that timer would fire again under TIMERD_RETRY.`,
		Example: `  timerd doctor
  timerd doctor --json
  TIMERD_RETRY='app1:trans=wechatpay' timerd doctor --key app1:trans:notice:1`,
		Args: arguments(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("key") {
				return explainKey(cmd, key, asJSON)
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), doctorTimeout)
			defer cancel()
			findings, code := examine(ctx, slog.New(slog.DiscardHandler))
			if asJSON {
				for _, f := range findings {
					if err := writeJSON(cmd.OutOrStdout(), f); err != nil {
						return err
					}
				}
			} else if err := printFindings(cmd.OutOrStdout(), findings); err != nil {
				return err
			}
			if code != exitOK {
				return exitCode(code)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a line of JSON for each finding, or for each attempt")
	cmd.Flags().StringVar(&key, "key", "", "print the retry schedule of a timer: app:module:type:id")
	return cmd
}

// examine makes every check that the configuration allows, and returns the exit
// code that follows from them.
func examine(ctx context.Context, log *slog.Logger) ([]doctor.Finding, int) {
	findings, broken, c := examineConfig()
	connect := connector{log: log}
	if broken&sectionRedis == 0 {
		findings = append(findings, examineRedis(ctx, connect, c)...)
	}
	if broken&sectionNATS == 0 {
		findings = append(findings, examineNATS(ctx, connect, c)...)
	}
	failed := func(f doctor.Finding) bool { return f.Level == doctor.Fail }
	switch {
	case broken != 0:
		return findings, exitUsage
	case slices.ContainsFunc(findings, failed):
		return findings, exitFailed
	}
	return findings, exitOK
}

// examineConfig reads the configuration section by section, so that a fault in
// one does not hide what can be said about the others.
func examineConfig() (findings []doctor.Finding, broken section, all config) {
	add := func(level doctor.Level, text, fix string) {
		f := doctor.Finding{Level: level, Check: checkConfiguration, Text: text, Fix: fix}
		if !slices.Contains(findings, f) {
			findings = append(findings, f)
		}
	}
	for _, s := range []section{sectionLog, sectionRedis, sectionNATS, sectionService} {
		c, err := readConfig(s)
		if faults, ok := errors.AsType[*configError](err); ok {
			broken |= s
			for _, fault := range faults.faults {
				add(doctor.Fail, fault.Error(), "correct the variable; timerd serve --help explains each one")
			}
		}
		for _, warning := range c.Warnings {
			add(doctor.Warn, warning, "rename the variable or unset it")
		}
		switch s {
		case sectionRedis:
			all.Redis = c.Redis
		case sectionNATS:
			all.NATS = c.NATS
		case sectionService:
			all.Service = c.Service
		}
	}
	if all.Service.MaxPayload <= 0 {
		all.Service.MaxPayload = schedule.DefaultMaxPayload
	}
	if len(findings) == 0 {
		findings = append(findings, doctor.Finding{Level: doctor.OK, Check: checkConfiguration, Text: "valid"})
	}
	return findings, broken, all
}

func examineRedis(ctx context.Context, connect connector, c config) []doctor.Finding {
	rdb, err := connect.redis(ctx, c.Redis)
	if err != nil {
		fix := "start Redis, or correct TIMERD_REDIS_URL"
		if redisRefused(err) {
			fix = "correct the user, the password or the database in TIMERD_REDIS_URL"
		}
		return []doctor.Finding{{Level: doctor.Fail, Check: checkRedis, Text: err.Error(), Fix: fix}}
	}
	defer func() { _ = rdb.Close() }() // nothing is pending on it
	findings := []doctor.Finding{{Level: doctor.OK, Check: checkRedis, Text: c.Redis.Shown}}
	examine := func(server redis.UniversalClient, configure func(*doctor.Redis)) []doctor.Finding {
		d := doctor.NewRedis(server)
		d.DB, d.Namespaces = c.Redis.db(), c.Service.Namespaces
		d.MaxPayload, d.Events = c.Service.MaxPayload, c.Service.KeyspaceEvents
		configure(d)
		return d.Check(ctx)
	}
	if c.Redis.Mode != modeCluster {
		return append(findings, examine(rdb, func(*doctor.Redis) {})...)
	}
	sched := schedule.New(rdb, c.Service.MaxPayload)
	masters, err := sched.Masters(ctx)
	if err != nil {
		return append(findings, doctor.Finding{Level: doctor.Fail, Check: checkRedis, Text: err.Error(), Fix: "let CLUSTER NODES show what is wrong with the cluster"})
	}
	for _, m := range masters {
		found := examine(m.Server, func(d *doctor.Redis) {
			d.Cluster = sched.On(m.Server)
			if len(m.Partitions) > 0 {
				d.Home = m.Partitions[0]
			}
		})
		for _, f := range found {
			f.Text = m.Addr + ": " + f.Text
			findings = append(findings, f)
		}
	}
	return findings
}

func examineNATS(ctx context.Context, connect connector, c config) []doctor.Finding {
	failed := func(err error, fix string) []doctor.Finding {
		return []doctor.Finding{{Level: doctor.Fail, Check: checkNATS, Text: err.Error(), Fix: fix}}
	}
	target := c.NATS
	if target.Embedded {
		target = target.fromOutside()
	}
	nc, err := connect.dialNATS(ctx, target)
	switch {
	case err != nil && c.NATS.Embedded:
		return []doctor.Finding{{
			Level: doctor.Warn, Check: checkNATS, Text: "embedded; it cannot be checked, because no timerd runs it now at " + target.Shown,
			Fix: "start timerd, then run this again",
		}}
	case err != nil && natsRefused(err):
		return failed(err, "correct the credentials in TIMERD_NATS_URL or TIMERD_NATS_CREDS, _CERT and _KEY")
	case err != nil:
		return failed(err, "start nats-server, or correct TIMERD_NATS_URL")
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return failed(err, "correct TIMERD_NATS_URL")
	}
	return append([]doctor.Finding{{Level: doctor.OK, Check: checkNATS, Text: target.Shown}},
		doctor.NewNATS(js, c.streams(), c.Service.MaxPayload).Check(ctx)...)
}

func printFindings(w io.Writer, findings []doctor.Finding) error {
	count := map[doctor.Level]int{}
	for _, f := range findings {
		count[f.Level]++
		if _, err := fmt.Fprintf(w, "%-4s  %-16s  %s\n", f.Level, f.Check, f.Text); err != nil {
			return err
		}
		if f.Fix != "" {
			fmt.Fprintf(w, "      %-16s  fix: %s\n", "", f.Fix)
		}
	}
	_, err := fmt.Fprintf(w, "\n%d ok, %d warn, %d fail\n", count[doctor.OK], count[doctor.Warn], count[doctor.Fail])
	return err
}
