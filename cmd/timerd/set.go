package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/internal/admin"
	"github.com/timerd-io/timerd/internal/diag"
)

func newSet() *cobra.Command {
	var flags setFlags
	cmd := &cobra.Command{
		Use:   "set {KEY DELAY [PAYLOAD] | --from FILE}",
		Short: "Set a timer, or many",
		Long: `Set a timer, or replace a pending one.

` + keyHelp + `
DELAY is a duration (90s, 1h30m, 250ms, 30d), an instant (2026-11-20T09:00:00Z) or @unix-ms. One
with spaces needs quotes ('40d 51m'): the next argument is the payload. If the instant has passed,
the timer fires at once.
PAYLOAD is the payload of the event; - reads it from standard input.

With --from, set the timers of a file, or of standard input if it is -. Each line is a JSON object:

  key             app:module:type:id; key_base64 instead for one that is not UTF-8
  payload         a string is used as it is, another value as JSON; left out, it is empty
  payload_base64  the payload in base64, instead
  px              the delay in milliseconds
  at              the due time instead, in milliseconds since 1970
  attempt         as --attempt
  nx              true: as --nx; a timer that exists already is not a failure
  late            as --late, in milliseconds
  drop_late       true: as --drop-late
  unless, if      as --unless, --if; percent-encoded as in events

Lines of timerd export have a due time and more: they are set as they were; a timer that is there
already is left alone. timerd schema timer describes every member.

Bad lines are reported with their numbers and the others are set; the exit code is then 1. Until all
lines are done, FILE.done notes the last one; the next call goes on behind it.`,
		Example: `  timerd set shop:order:timeout:42 30m '{"order":42}'
  timerd set shop:report:daily:1 2027-01-01T00:00:00Z
  timerd set shop:otp:sms:7 1m '{"code":1234}' --late 30s --drop-late
  timerd set shop:order:timeout:44 30m --unless shop:order:paid:44
  cat invoice.json | timerd set shop:invoice:due:7 30d - --nx
  echo '{"key":"shop:order:timeout:43","payload":{"order":43},"px":1800000}' | timerd set --from -`,
		Args: func(cmd *cobra.Command, args []string) error { return setArgs(cmd, args, flags) },
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("from") {
				return setFrom(cmd, flags)
			}
			return setOne(cmd, args, flags)
		},
	}
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		for digit := '0'; digit <= '9'; digit++ {
			if strings.HasPrefix(err.Error(), fmt.Sprintf("unknown shorthand flag: %q", digit)) {
				return usagef(cmd, "DELAY cannot be negative, and a PAYLOAD that begins with - comes after --")
			}
		}
		return flagError(cmd, err)
	})
	flags.addConditions(cmd)
	cmd.Flags().IntVar(&flags.attempt, "attempt", 0, "the attempt it fires as; default: the one in the payload, or 1")
	cmd.Flags().BoolVar(&flags.asJSON, "json", false, "print JSON; with --from, a line for each timer that is set")
	cmd.Flags().StringVar(&flags.from, "from", "", "set the timers of a `FILE`; - reads standard input")
	files := func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return nil, cobra.ShellCompDirectiveDefault
	}
	_ = cmd.RegisterFlagCompletionFunc("from", files) // fails only for an unknown flag
	return cmd
}

// setArgs is the argument check of set.
func setArgs(cmd *cobra.Command, args []string, flags setFlags) error {
	from := cmd.Flags().Changed("from")
	switch {
	case from && (len(args) > 0 || flags.nx || flags.xx || flags.dropLate || cmd.Flags().Changed("attempt") ||
		cmd.Flags().Changed("late") || cmd.Flags().Changed("unless") || cmd.Flags().Changed("if")):
		return usagef(cmd, "--from takes keys, delays, payloads, nx, attempts, limits and guards only from the file")
	case from:
	case len(args) < 2:
		return usagef(cmd, "want KEY DELAY [PAYLOAD], got %d of them", len(args))
	case len(args) > 3:
		return usagef(cmd, "want KEY DELAY [PAYLOAD], got %d arguments; put quotes around a PAYLOAD with spaces",
			len(args))
	}
	return nil
}

// setOne sets the timer of the arguments.
func setOne(cmd *cobra.Command, args []string, flags setFlags) error {
	if err := checkKey(cmd, args[0]); err != nil {
		return err
	}
	when, in, err := parseWhen(args[1])
	if err != nil {
		return usagef(cmd, "DELAY %w", err)
	}
	options, err := flags.conditions(cmd)
	if err != nil {
		return err
	}
	if cmd.Flags().Changed("attempt") {
		if flags.attempt < 1 || flags.attempt > math.MaxInt32 {
			return usagef(cmd, "--attempt=%d: want a number from 1 to %d", flags.attempt, math.MaxInt32)
		}
		options = append(options, client.Attempt(flags.attempt))
	}
	payload, err := payloadArg(cmd, args[2:])
	if err != nil {
		return err
	}
	return withKey(cmd, args[0], func(ctx context.Context, rdb redis.UniversalClient, key string) error {
		due, err := client.New(rdb).Set(ctx, key, payload, when, options...)
		if errors.Is(err, client.ErrNotSet) {
			return fmt.Errorf("not set: %s", flags.whyNot())
		}
		if err != nil {
			return err
		}
		warnIfUnattended(ctx, cmd, rdb)
		view := newTimerView(key, due, flags.attempt)
		if flags.asJSON {
			return writeJSON(cmd.OutOrStdout(), view)
		}
		wait := " (" + diag.Duration(in) + ")"
		if in == 0 {
			wait = waitFrom(ctx, rdb, due)
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s is due at %s%s\n", view.Key, view.DueAt, wait)
		return err
	})
}

// parseWhen reads a DELAY. in is the delay, 0 for an instant.
func parseWhen(s string) (when client.When, in time.Duration, err error) {
	m, err := admin.ParseMoment(s)
	at, instant := m.Instant()
	switch {
	case err != nil:
		return client.When{}, 0, err
	case instant:
		return client.At(at), 0, nil
	case m.In() < time.Millisecond:
		return client.When{}, 0, fmt.Errorf("%q: want at least 1ms from now", s)
	}
	return client.After(m.In()), m.In(), nil
}
