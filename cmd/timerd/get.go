package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

func newGet() *cobra.Command {
	var asJSON, raw bool
	cmd := &cobra.Command{
		Use:        "get KEY",
		SuggestFor: []string{"show"},
		Short:      "Show a timer that waits or is firing",
		Long: `Show a timer and its state: pending, not due yet; held, due, and its namespace is held; owed, due,
and not claimed yet; firing, claimed, and NATS has not acknowledged its event. If a key has several
timers, the one with the first of these states is shown; timerd ls shows all. The exit code is 1 if
there is no timer; if NATS answers, the error has the time of the last firing.

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
			return withKey(cmd, args[0], func(ctx context.Context, rdb redis.UniversalClient, key string) error {
				timer, found, err := client.New(rdb).Get(ctx, key)
				if err != nil {
					return err
				}
				warnIfUnattended(ctx, cmd, rdb)
				view := newTimerView(key, timer.Due, timer.Attempt)
				view.State, view.Late = string(timer.State), timer.Late.Milliseconds()
				view.Repeat, view.Occurrence, view.TraceParent = timer.Repeat, timer.Occurrence, timer.TraceParent
				view.Unless, view.If = keys.EncodeText(timer.Unless), keys.EncodeText(timer.If)
				out := cmd.OutOrStdout()
				switch {
				case !found:
					return whyNoTimer(cmd.Context(), rdb, key)
				case raw && timer.Payload == nil:
					return fmt.Errorf("%s has no payload", view.Key)
				case raw:
					_, err = out.Write(timer.Payload)
				case asJSON:
					err = writeJSON(out, view.withPayload(timer.Payload, event.StatusMissing))
				default:
					err = showTimer(ctx, out, rdb, key, view, timer)
				}
				return err
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&raw, "raw", false, "print the payload alone, byte for byte")
	return cmd
}

// whyNoTimer returns the error for a key without a timer: with its known past, or with the fix if the key is in Redis
// without a TTL.
func whyNoTimer(ctx context.Context, rdb redis.UniversalClient, key string) error {
	name := keys.EncodeText(key)
	const withoutTTL = -1 // ns
	if at, err := rdb.PExpireTime(ctx, key).Result(); err == nil && at == withoutTTL {
		return fmt.Errorf("%s has no TTL, so nothing fires: EXPIRE gives it one", name)
	}
	parsed, err := keys.Parse(key)
	if past := pastOf(ctx, parsed); err == nil && past != "" {
		return fmt.Errorf("%s is not pending, held, owed or firing\n%s", name, past)
	}
	return fmt.Errorf("%s is not pending, held, owed or firing", name)
}

// orLater returns an addition to a due time. If due is the latest time that timerd stores, the addition says that the
// key may run out later.
func orLater(due time.Time) string {
	if schedule.MillisOf(due) == schedule.Latest {
		return ", or later: no later time is kept"
	}
	return ""
}

// guardLines returns the lines of a timer's guards.
func guardLines(view timerView) (lines string) {
	if view.Unless != "" {
		lines = fmt.Sprintf("unless   %s exists\n", view.Unless)
	}
	if view.If != "" {
		lines += fmt.Sprintf("if       %s exists\n", view.If)
	}
	return lines
}

// showTimer prints a timer for people to read.
func showTimer(ctx context.Context, w io.Writer, rdb redis.UniversalClient, key string, view timerView,
	timer client.Timer) error {
	status := event.StatusMissing
	if timer.Payload == nil {
		status = whyMissing(ctx, rdb, key)[0]
	}
	more := ""
	if timer.Late > 0 {
		more = fmt.Sprintf("late     %s at most\n", diag.Duration(timer.Late))
	}
	more += guardLines(view)
	if timer.Repeat != "" {
		more += fmt.Sprintf("repeat   %s, occurrence %d\n", timer.Repeat, timer.Occurrence)
	}
	if timer.TraceParent != "" {
		more += fmt.Sprintf("trace    %s\n", timer.TraceParent)
	}
	_, err := fmt.Fprintf(w, "key      %s\nstate    %s\ndue      %s%s\nattempt  %d\n%spayload  %s\n", view.Key,
		view.State,
		view.DueAt, waitFrom(ctx, rdb, timer.Due)+orLater(timer.Due), timer.Attempt, more,
		showPayload(timer.Payload, status, math.MaxInt))
	return err
}
