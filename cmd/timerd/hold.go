package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/timerd-io/timerd/internal/admin"
	"github.com/timerd-io/timerd/internal/moment"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// withHolds calls f with the holds of the schedule.
func withHolds(cmd *cobra.Command, f func(ctx context.Context, h *admin.Holds, rdb redis.UniversalClient) error) error {
	return withRedis(cmd, func(ctx context.Context, rdb redis.UniversalClient) error {
		return explainMode(f(ctx, admin.NewHolds(schedule.New(rdb, schedule.DefaultMaxPayload)), rdb))
	})
}

// explainMode says what to set where Redis is organised in another way than timerd is told.
func explainMode(err error) error {
	if errors.Is(err, schedule.ErrClusterNode) {
		return fmt.Errorf("%w: set TIMERD_REDIS_MODE=cluster", err)
	}
	return err
}

func newHold() *cobra.Command {
	var r admin.HoldRequest
	var until string
	cmd := &cobra.Command{
		Use:   "hold NAMESPACE",
		Short: "Hold the timers of a namespace back",
		Long: `Hold the timers of a namespace back: for the provider that is down, the deploy that went wrong. When
the command has returned 0, no timerd claims a timer of it any more. What was claimed before may
still be published. Timers that become due wait in Redis, where they can be cancelled, and
timerd resume releases them.

The exit code is 1 if it is not certain after 5 s that nobody claims any more: what is missing is
named, and the hold stands. That no replica of Redis has the hold yet is said too; a failover may
then lose it. A namespace that is held already stays so; reason and end are those given last. One
that is being resumed is held anew, since now: a shift then counts from this hold.

` + namespaceHelp,
		Example: `  timerd hold pay --reason "provider is down" --for 2h
  timerd hold shop:order`,
		Args: arguments(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if r.Namespace, err = namespaceArg(cmd, args); err != nil {
				return err
			}
			if until != "" {
				if r.For, err = moment.ParseDuration(until); err != nil || r.For < admin.MinHold {
					return usagef(cmd, "--for=%s: want a duration of a second or more, such as 2h", until)
				}
			}
			return withHolds(cmd, func(ctx context.Context, h *admin.Holds, rdb redis.UniversalClient) error {
				held, err := h.Hold(ctx, r)
				if err != nil {
					return err
				}
				return tellHeld(ctx, cmd, held, rdb)
			})
		},
	}
	cmd.Flags().StringVar(&r.Reason, "reason", "", "why, for others to read")
	cmd.Flags().StringVar(&until, "for", "", "end the hold by itself after a `DURATION`, as timerd resume does")
	return cmd
}

// tellHeld says what came of a hold.
func tellHeld(ctx context.Context, cmd *cobra.Command, held admin.Held, rdb redis.UniversalClient) error {
	for _, server := range held.Unreplicated {
		fmt.Fprintf(cmd.ErrOrStderr(), "timerd: warning: no replica has the hold, so it is as durable as this server: %s\n", server)
	}
	warnIfUnattended(ctx, cmd, rdb)
	if len(held.Missing) > 0 {
		for _, who := range held.Missing {
			fmt.Fprintf(cmd.ErrOrStderr(), "timerd: timers of %s may still be claimed by: %s\n", held.Hold.Namespace, who)
		}
		fmt.Fprintln(cmd.ErrOrStderr(), "timerd: the hold stands, and the timerds go on to bring it there; repeat the command to see whether it is complete")
		return exitCode(exitFailed)
	}
	what := "held"
	switch {
	case held.Resumed != nil:
		what = "held anew, since " + held.Hold.Since.Time().Format(timeLayout) + "; the resume has ended, and a shift counts from this hold"
	case held.Was:
		what = "held as before, since " + held.Hold.Since.Time().Format(timeLayout)
	}
	if held.Hold.Until > 0 {
		what += ", until " + held.Hold.Until.Time().Format(timeLayout)
	}
	_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s %s\n", held.Hold.Namespace, what)
	return err
}

func newResume() *cobra.Command {
	r := admin.HoldRequest{Kind: schedule.ResumeNow}
	var rate string
	var shift, dead bool
	cmd := &cobra.Command{
		Use:   "resume NAMESPACE",
		Short: "Release the timers of a namespace that is held",
		Long: `Release the timers of a namespace that is held, unless another hold covers them. What becomes due
from now on is free. Those that are held

  fire at once, in the order of their due times      without a flag
  fire one after the other, so many a second         --rate 200/s
  are due later, by as long as the hold has lasted   --shift
  become dead letters, with the reason "held"        --dead

At once and at a rate they keep their due times, so that they count as late. The command returns
when all are released. Ctrl-C ends it, and the timerds finish what it has begun. The exit code is 1
if somebody holds the namespace anew before that.

What another hold covers too stays held until that ends; the command says how many timers these are,
and of which holds. Then the resume applies to them as it was asked for: of several resumes of a
timer the one with the narrowest namespace decides.

` + namespaceHelp,
		Example: `  timerd resume pay --rate 200/s
  timerd resume shop:order --shift`,
		Args: arguments(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if r.Namespace, err = namespaceArg(cmd, args); err != nil {
				return err
			}
			switch {
			case rate != "":
				r.Kind = schedule.ResumeRate
				if r.Rate, err = admin.ParseRate(rate); err != nil {
					return usagef(cmd, "--rate=%s: %v", rate, err)
				}
			case shift:
				r.Kind = schedule.ResumeShift
			case dead:
				r.Kind = schedule.ResumeDead
			}
			return withHolds(cmd, func(ctx context.Context, h *admin.Holds, _ redis.UniversalClient) error {
				return resume(ctx, cmd, h, r)
			})
		},
	}
	cmd.Flags().StringVar(&rate, "rate", "", "so many timers a second, minute or hour: a `RATE` such as 200/s, 90/m")
	cmd.Flags().BoolVar(&shift, "shift", false, "move the due times by the length of the hold")
	cmd.Flags().BoolVar(&dead, "dead", false, "make dead letters of the timers")
	cmd.MarkFlagsMutuallyExclusive("rate", "shift", "dead")
	return cmd
}

// resume releases timers and tells how far it is.
func resume(ctx context.Context, cmd *cobra.Command, h *admin.Holds, r admin.HoldRequest) error {
	told := time.Now()
	var last admin.ResumeProgress
	err := h.Resume(ctx, r, func(p admin.ResumeProgress) {
		last = p
		if time.Since(told) < 2*time.Second {
			return
		}
		told = time.Now()
		line := fmt.Sprintf("timerd: %d released, %d are held", p.Released, p.Held)
		if p.Waits != "" {
			line = fmt.Sprintf("timerd: %d released by this command; it waits: %s", p.Released, p.Waits)
		}
		fmt.Fprintln(cmd.ErrOrStderr(), line)
	})
	if ctx.Err() != nil {
		fmt.Fprintf(cmd.ErrOrStderr(), "timerd: interrupted; the timerds release what is left of %s\n", r.Namespace)
		return exitCode(exitFailed)
	}
	if err != nil {
		return err
	}
	for _, server := range h.Unreplicated(ctx) {
		fmt.Fprintf(cmd.ErrOrStderr(), "timerd: warning: no replica has the resume, so it is as durable as this server: %s\n", server)
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s resumed%s\n", r.Namespace, showKept(r.Kind, last))
	return err
}

// showKept says what stays held by others, and what becomes of it.
func showKept(kind schedule.ResumeKind, p admin.ResumeProgress) string {
	if p.Kept == 0 {
		return ""
	}
	by := make([]string, len(p.KeptBy))
	for i, n := range p.KeptBy {
		by[i] = n.String()
	}
	becomes := map[schedule.ResumeKind]string{
		schedule.ResumeNow: "fire", schedule.ResumeRate: "fire at the rate", schedule.ResumeShift: "are shifted", schedule.ResumeDead: "become dead letters",
	}
	return fmt.Sprintf("; %s stay held by %s, and %s when they come free", countTimers(p.Kept), strings.Join(by, ", "), becomes[kind])
}

func newHolds() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "holds",
		Short: "List the namespaces that are held",
		Long: `List the namespaces that are held, or whose timers are still being released, with who held them,
when and why, and how many timers wait that are due; a question mark stands for so many that it is
not known. A timer under several holds counts for each.`,
		Example: `  timerd holds
  timerd holds --json`,
		Args: arguments(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withSchedule(cmd, func(ctx context.Context, s *schedule.Schedule, rdb redis.UniversalClient) error {
				views, err := admin.NewHolds(s).List(ctx)
				if err != nil {
					return explainMode(err)
				}
				err = printHolds(cmd.OutOrStdout(), views, asJSON)
				warnIfUnattended(ctx, cmd, rdb)
				if len(views) == 0 && err == nil {
					fmt.Fprintln(cmd.ErrOrStderr(), "timerd: nothing is held")
				}
				return err
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a line of JSON for each")
	return cmd
}

// holdView is a hold as --json shows it.
type holdView struct {
	Namespace string     `json:"namespace"`
	Since     time.Time  `json:"since"`
	Until     *time.Time `json:"until"` // null: until it is resumed
	Reason    string     `json:"reason"`
	By        string     `json:"by"`
	Held      *int64     `json:"held"` // null: not known
	// Resume says how it is being resumed; null while it holds.
	Resume *resumeView `json:"resume"`
}

type resumeView struct {
	Kind  schedule.ResumeKind `json:"kind"`
	Rate  float64             `json:"rate,omitempty"` // timers a second
	Since time.Time           `json:"since"`
	By    string              `json:"by"`
}

func newHoldView(v admin.HoldView) holdView {
	out := holdView{
		Namespace: v.Namespace.String(), Since: v.Since.Time(), Reason: keys.EncodeText(v.Reason), By: keys.EncodeText(v.By), Held: v.Held,
	}
	if v.Until > 0 {
		until := v.Until.Time()
		out.Until = &until
	}
	if r := v.Resume; r != nil {
		out.Resume = &resumeView{r.Kind, r.Rate, r.At.Time(), keys.EncodeText(r.By)}
	}
	return out
}

func printHolds(w io.Writer, views []admin.HoldView, asJSON bool) error {
	if asJSON {
		for _, v := range views {
			if err := writeJSON(w, newHoldView(v)); err != nil {
				return err
			}
		}
		return nil
	}
	if len(views) == 0 {
		return nil
	}
	t := tableFor(w, true, column{title: "NAMESPACE", middle: true, least: 10}, column{title: "SINCE"}, column{title: "UNTIL"}, column{title: "HELD"},
		column{title: "BY", spare: 2}, column{title: "REASON", least: 8, spare: 1})
	for _, v := range views {
		h, until := newHoldView(v), "resumed"
		if h.Until != nil {
			until = h.Until.Format(timeLayout)
		}
		if h.Resume != nil {
			until = "being resumed: " + string(h.Resume.Kind)
		}
		err := t.add(cell{text: h.Namespace}, cell{text: h.Since.Format(timeLayout)}, cell{text: until}, cell{text: showKnown(h.Held)},
			cell{text: h.By}, cell{text: h.Reason})
		if err != nil {
			return err
		}
	}
	return t.flush()
}
