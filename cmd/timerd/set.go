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
)

func newSet() *cobra.Command {
	var nx, xx, asJSON bool
	var attempt int
	cmd := &cobra.Command{
		Use:   "set KEY DELAY [PAYLOAD]",
		Short: "Set a timer",
		Long: `Set a timer, or set it anew.

` + keyHelp + `
DELAY is a duration (90s, 1h30m, 250ms, 30d), an instant (2026-11-20T09:00:00Z) or @unix-ms.
PAYLOAD is what the event brings; - reads it from standard input.`,
		Example: `  timerd set shop:order:timeout:42 30m '{"order":42}'
  timerd set shop:report:daily:1 2027-01-01T00:00:00Z
  cat invoice.json | timerd set shop:invoice:due:7 30d - --nx`,
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
				if payload, err = readPayload(cmd); err != nil {
					return err
				}
			case len(args) == 3:
				payload = []byte(args[2])
			}
			return withRedis(cmd, func(ctx context.Context, rdb redis.UniversalClient) error {
				due, err := client.New(rdb).Set(ctx, args[0], payload, when, options...)
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

// readPayload reads the payload from standard input.
func readPayload(cmd *cobra.Command) ([]byte, error) {
	sayReading(cmd, "the payload")
	in := openStdin(cmd)
	defer func() { _ = in.Close() }() // never fails
	payload, err := io.ReadAll(in)
	if errors.Is(err, errInterrupted) {
		return nil, errors.New("interrupted: nothing was set")
	}
	if err != nil {
		return nil, fmt.Errorf("read the payload: %w", err)
	}
	return payload, nil
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
	if d, err := parseDuration(s); err == nil {
		if d < time.Millisecond {
			return client.When{}, fmt.Errorf("%q: want at least 1ms from now", s)
		}
		return client.After(d), nil
	}
	if t, err := time.Parse(time.RFC3339, s); err == nil {
		return client.At(t), nil
	}
	return client.When{}, fmt.Errorf("%q: want a duration such as 90s, 1h30m or 30d, an instant such as 2026-11-20T09:00:00Z, or @unix-ms", s)
}
