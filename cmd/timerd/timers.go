package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/keys"
)

const keyHelp = `KEY is app:module:type:id, as it is in Redis.`

func newSet() *cobra.Command {
	var nx, xx, asJSON bool
	var attempt int
	cmd := &cobra.Command{
		Use:   "set KEY DELAY [PAYLOAD]",
		Short: "Set a timer",
		Long: `Set a timer, or set it anew.

` + keyHelp + `
DELAY is a duration (90s, 1h30m, 250ms), an instant (2026-11-20T09:00:00Z) or @unix-ms.
PAYLOAD is what the event brings; - reads it from standard input.`,
		Example: `  timerd set shop:order:timeout:42 30m '{"order":42}'
  timerd set shop:report:daily:1 2027-01-01T00:00:00Z
  cat invoice.json | timerd set shop:invoice:due:7 720h - --nx`,
		Args: setArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if nx && xx {
				return usagef(cmd, "--nx and --xx exclude each other")
			}
			if err := checkKey(cmd, args[0]); err != nil {
				return err
			}
			when, err := parseWhen(args[1])
			if err != nil {
				return usagef(cmd, "DELAY %w", err)
			}
			var options []client.SetOption
			if nx {
				options = append(options, client.NX())
			}
			if xx {
				options = append(options, client.XX())
			}
			if cmd.Flags().Changed("attempt") {
				if attempt < 1 || attempt > math.MaxInt32 {
					return usagef(cmd, "--attempt=%d: want a number from 1 to %d", attempt, math.MaxInt32)
				}
				options = append(options, client.Attempt(attempt))
			}
			payload := []byte{}
			switch {
			case len(args) == 3 && args[2] == "-":
				if payload, err = io.ReadAll(cmd.InOrStdin()); err != nil {
					return fmt.Errorf("read the payload: %w", err)
				}
			case len(args) == 3:
				payload = []byte(args[2])
			}
			return withTimers(cmd, func(ctx context.Context, timers *client.Timers, rdb redis.UniversalClient) error {
				due, err := timers.Set(ctx, args[0], payload, when, options...)
				if errors.Is(err, client.ErrNotSet) {
					why := "there is no such timer and no such key, and --xx was given"
					if nx {
						why = "the timer, or a key of its name, is there, and --nx was given"
					}
					return fmt.Errorf("not set: %s", why)
				}
				if err != nil {
					return err
				}
				view := newTimerView(args[0], due, attempt)
				if asJSON {
					return writeJSON(cmd.OutOrStdout(), view)
				}
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s is due at %s%s\n", view.Key, view.DueAt, waitFrom(ctx, rdb, due))
				return err
			})
		},
	}
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		for digit := '0'; digit <= '9'; digit++ {
			if strings.HasPrefix(err.Error(), fmt.Sprintf("unknown shorthand flag: %q", digit)) {
				return usagef(cmd, "DELAY cannot be negative, and a PAYLOAD that begins with - comes after --")
			}
		}
		return &usageError{cmd.CommandPath(), err}
	})
	cmd.Flags().BoolVar(&nx, "nx", false, "only if there is no such timer yet")
	cmd.Flags().BoolVar(&xx, "xx", false, "only if there is such a timer")
	cmd.Flags().IntVar(&attempt, "attempt", 0, "the attempt that it fires as; default: what the payload says, or 1")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func newGet() *cobra.Command {
	var asJSON, raw bool
	cmd := &cobra.Command{
		Use:   "get KEY",
		Short: "Show a pending timer",
		Long: `Show a pending timer. Without one, the exit code is 1.

` + keyHelp,
		Example: `  timerd get shop:order:timeout:42
  timerd get shop:order:timeout:42 --raw > payload`,
		Args: arguments(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if asJSON && raw {
				return usagef(cmd, "--json and --raw exclude each other")
			}
			if err := checkKey(cmd, args[0]); err != nil {
				return err
			}
			return withTimers(cmd, func(ctx context.Context, timers *client.Timers, rdb redis.UniversalClient) error {
				timer, found, err := timers.Get(ctx, args[0])
				if err != nil {
					return err
				}
				view := newTimerView(args[0], timer.Due, timer.Attempt)
				out := cmd.OutOrStdout()
				switch {
				case !found:
					return fmt.Errorf("%s is not pending", view.Key)
				case raw && timer.Payload == nil:
					return fmt.Errorf("%s has no payload", view.Key)
				case raw:
					_, err = out.Write(timer.Payload)
				case asJSON:
					err = writeJSON(out, view.withPayload(timer.Payload, event.StatusMissing))
				default:
					_, err = fmt.Fprintf(out, "key      %s\ndue      %s%s\nattempt  %d\npayload  %s\n", view.Key, view.DueAt,
						waitFrom(ctx, rdb, timer.Due), timer.Attempt, showPayload(timer.Payload, event.StatusMissing, math.MaxInt))
				}
				return err
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&raw, "raw", false, "print the payload alone, byte for byte")
	return cmd
}

func newCancel() *cobra.Command {
	return &cobra.Command{
		Use:   "cancel KEY",
		Short: "Cancel a timer",
		Long: `Cancel a timer and delete its key. What was found is printed:

  cancelled  it was pending and will not fire
  fired      it is too late: it is firing, or has lately fired
  unknown    there is no such timer

The exit code is 0 only for the first.

` + keyHelp,
		Example: `  timerd cancel shop:order:timeout:42`,
		Args:    arguments(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkKey(cmd, args[0]); err != nil {
				return err
			}
			return withTimers(cmd, func(ctx context.Context, timers *client.Timers, _ redis.UniversalClient) error {
				outcome, err := timers.Cancel(ctx, args[0])
				if err != nil {
					return err
				}
				if _, err := fmt.Fprintln(cmd.OutOrStdout(), outcome); err != nil {
					return err
				}
				if outcome != client.Cancelled {
					return exitCode(exitFailed)
				}
				return nil
			})
		},
	}
}

// setArgs is the argument check of set.
func setArgs(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) < 2:
		return usagef(cmd, "want KEY DELAY [PAYLOAD], got %d of them", len(args))
	case len(args) > 3:
		return usagef(cmd, "want KEY DELAY [PAYLOAD], got %d arguments; put quotes around a PAYLOAD with spaces", len(args))
	}
	return nil
}

// checkKey returns a *usageError for a KEY that is none of a timer.
func checkKey(cmd *cobra.Command, key string) error {
	if _, err := keys.Parse(key); err != nil {
		return usagef(cmd, "KEY %q: %w", abbreviate(key), err)
	}
	return nil
}

// withTimers calls f with a connection to Redis. What the function library refuses
// becomes a *usageError.
func withTimers(cmd *cobra.Command, f func(context.Context, *client.Timers, redis.UniversalClient) error) error {
	c, log, err := commandConfig(cmd, sectionRedis)
	if err != nil {
		return err
	}
	rdb, err := openRedis(cmd, c, log)
	if err != nil {
		return err
	}
	err = f(cmd.Context(), client.New(rdb), rdb)
	if errors.Is(err, client.ErrInvalid) {
		err = &usageError{cmd.CommandPath(), err}
	}
	return errors.Join(err, rdb.Close())
}

// waitFrom returns how long it is until due by the clock of Redis, in brackets,
// or "" if Redis does not say what time it is.
func waitFrom(ctx context.Context, rdb redis.UniversalClient, due time.Time) string {
	now, err := rdb.Time(ctx).Result()
	if err != nil {
		return ""
	}
	return fmt.Sprintf(" (%s)", showWait(due.Sub(now)))
}

// parseWhen reads a DELAY: a duration, an instant or @unix-ms.
func parseWhen(s string) (client.When, error) {
	if ms, ok := strings.CutPrefix(s, "@"); ok {
		n, err := strconv.ParseInt(ms, 10, 64)
		if err != nil {
			return client.When{}, fmt.Errorf("%q: want milliseconds since 1970 after the @", s)
		}
		return client.At(time.UnixMilli(n)), nil
	}
	if d, err := time.ParseDuration(s); err == nil {
		if d < time.Millisecond {
			return client.When{}, fmt.Errorf("%q: want at least 1ms from now", s)
		}
		return client.After(d), nil
	}
	if t, err := time.Parse(time.RFC3339, s); err == nil {
		return client.At(t), nil
	}
	return client.When{}, fmt.Errorf("%q: want a duration such as 90s or 1h30m, an instant such as 2026-11-20T09:00:00Z, or @unix-ms", s)
}
