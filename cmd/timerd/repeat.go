package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/internal/cron"
	"github.com/timerd-io/timerd/keys"
)

// shownOccurrences is the number of next occurrences printed.
const shownOccurrences = 5

// repeatFlags are the flags of timerd repeat.
type repeatFlags struct {
	every, catchUp durationFlag
	cron, zone     string
	from, until    string
	times          int
	set            setFlags // nx, xx, the limit and the output
}

func newRepeat() *cobra.Command {
	var f repeatFlags
	cmd := &cobra.Command{
		Use:   "repeat KEY {--every INTERVAL | --cron EXPR} [PAYLOAD]",
		Short: "Set a repeating timer, or show its due times",
		Long: `Set a timer that fires again and again, until it is cancelled or its key is deleted. It replaces the
pending timer of the key.

` + keyHelp + `
An interval counts from now, or from --from, and does not drift. timerd repeat next --help explains
cron expressions, and timerd repeat next tries one. A running timerd computes the first due time
within milliseconds; if none runs, the next one to start does.
PAYLOAD is the payload of each event; - reads it from standard input.

Occurrences missed while no timerd ran are skipped, except the pending one, and the ones within
--catch-up.`,
		Example: `  timerd repeat shop:stock:count:1 --every 5m
  timerd repeat shop:report:daily:1 --cron '0 9 * * 1-5' --tz Europe/Berlin '{"to":"sales"}'
  timerd repeat next '0 9 * * 1-5' --tz Europe/Berlin`,
		Args: arguments(cobra.RangeArgs(1, 2)),
		RunE: f.run,
	}
	cmd.Flags().Var(&f.every, "every", "fire each `INTERVAL`: 30s, 5m, 1d; at least 100ms")
	cmd.Flags().StringVar(&f.cron, "cron", "", "fire by a cron `EXPR`ession")
	cmd.Flags().StringVar(&f.zone, "tz", "", "the `ZONE` of a cron expression, such as Europe/Berlin; default: UTC")
	cmd.Flags().StringVar(&f.from, "from", "",
		"begin at `T`: an instant (2026-11-20T09:00:00Z), @unix-ms or a duration from now; default: now")
	cmd.Flags().StringVar(&f.until, "until", "", "end at `T`, the last possible due time")
	cmd.Flags().IntVar(&f.times, "times", 0, "number of firings in all; 0: no limit")
	cmd.Flags().Var(&f.catchUp, "catch-up", "also fire occurrences missed in the last `DURATION`; default: none")
	f.set.addConditions(cmd)
	cmd.Flags().BoolVar(&f.set.asJSON, "json", false, "print a line of JSON for each of the next occurrences")
	cmd.AddCommand(newRepeatNext(), newRepeatApply())
	return cmd
}

// run sets the timer and prints its next occurrences.
func (f *repeatFlags) run(cmd *cobra.Command, args []string) error {
	if err := checkKey(cmd, args[0]); err != nil {
		return err
	}
	spec, err := f.spec(cmd)
	if err != nil {
		return err
	}
	if f.times < 0 || f.times > math.MaxInt32 {
		return usagef(cmd, "--times=%d: want a number from 1 to %d, or 0", f.times, math.MaxInt32)
	}
	options, err := f.conditions(cmd)
	if err != nil {
		return err
	}
	from, err := momentFlag(cmd, "from", f.from)
	if err != nil {
		return err
	}
	until, err := momentFlag(cmd, "until", f.until)
	if err != nil {
		return err
	}
	payload, err := payloadArg(cmd, args[1:])
	if err != nil {
		return err
	}
	return withKey(cmd, args[0], func(ctx context.Context, rdb redis.UniversalClient, key string) error {
		now, err := clockOf(ctx, rdb)
		if err != nil {
			return err
		}
		r := cron.Repetition{Spec: spec, From: now, Times: int64(f.times)}
		if from != nil {
			r.From = from.From(now)
			options = append(options, client.From(r.From))
		}
		if until != nil {
			r.Until = until.From(now)
			options = append(options, client.Until(r.Until))
		}
		first, err := client.New(rdb).Repeat(ctx, key, payload, f.repetition(), options...)
		if errors.Is(err, client.ErrNotSet) {
			return fmt.Errorf("not set: %s", f.set.whyNot())
		}
		if err != nil {
			return err
		}
		warnIfUnattended(ctx, cmd, rdb)
		if !first.IsZero() {
			r.From = first
		}
		if !f.set.asJSON {
			if _, err := fmt.Fprintf(cmd.OutOrStdout(), "%s is set: %s\n", keys.EncodeText(key), spec); err != nil {
				return err
			}
		}
		most := shownOccurrences
		if f.times > 0 {
			most = min(most, f.times)
		}
		_, err = printOccurrences(cmd, &r, now, now, most, f.set.asJSON)
		return err
	})
}

// spec returns the rhythm of --every or --cron.
func (f *repeatFlags) spec(cmd *cobra.Command) (spec cron.Spec, err error) {
	every := cmd.Flags().Changed("every")
	switch {
	case every == cmd.Flags().Changed("cron"):
		return spec, usagef(cmd, "want either --every INTERVAL or --cron EXPR")
	case every && f.zone != "":
		return spec, usagef(cmd, "--tz goes with --cron only")
	case every:
		spec, err = cron.Every(time.Duration(f.every))
	default:
		spec, err = cron.At(f.cron, f.zone)
	}
	if err != nil {
		return spec, usagef(cmd, "%w", err)
	}
	return spec, nil
}

// repetition returns spec for the client.
func (f *repeatFlags) repetition() client.Repetition {
	if f.cron == "" {
		return client.Every(time.Duration(f.every))
	}
	return client.Cron(f.cron, f.zone)
}

// conditions returns the options other than times.
func (f *repeatFlags) conditions(cmd *cobra.Command) ([]client.SetOption, error) {
	options, err := f.set.conditions(cmd)
	if f.times > 0 {
		options = append(options, client.Times(f.times))
	}
	if f.catchUp < 0 {
		return nil, usagef(cmd, "--catch-up=%s: want 0 or more", &f.catchUp)
	}
	if f.catchUp > 0 {
		options = append(options, client.CatchUp(time.Duration(f.catchUp)))
	}
	return options, err
}
