package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/timerd-io/timerd/internal/admin"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

func newResume() *cobra.Command {
	how := schedule.Resume{Kind: schedule.ResumeNow}
	var rate string
	var shift, dead bool
	cmd := &cobra.Command{
		Use:        "resume NAMESPACE",
		SuggestFor: []string{"continue", "unpause", "release"},
		Short:      "Release the timers of a namespace on hold",
		Long: `Release the timers of a namespace on hold, unless another hold covers them. Timers that become
due from now on are free. Held timers

  fire at once, by due time                          without a flag
  fire at a limited rate                             --rate 200/s
  are due later, by the length of the hold           --shift
  become dead letters, with the reason "held"        --dead

At once and at a rate they keep their due times, so they count as late. The command returns when all
are released. Ctrl-C ends it, and the timerds finish the resume. The exit code is 1 if the namespace
is held again before that.

Timers under another hold stay on hold until that ends; the command prints their number, and the
holds. This resume then applies to them. If several resumes cover a timer, the one with the
narrowest namespace decides.

` + namespaceHelp,
		Example: `  timerd resume pay --rate 200/s
  timerd resume shop:order --shift`,
		Args: arguments(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			n, err := namespaceArg(cmd, args)
			if err != nil {
				return err
			}
			switch {
			case rate != "":
				how.Kind = schedule.ResumeRate
				if how.Rate, err = admin.ParseRate(rate); err != nil {
					return usagef(cmd, "--rate=%s: %v", rate, err)
				}
			case shift:
				how.Kind = schedule.ResumeShift
			case dead:
				how.Kind = schedule.ResumeDead
			}
			journal := newJournal(cmd)
			defer journal.close()
			return withHolds(cmd, func(ctx context.Context, h *admin.Holds, _ redis.UniversalClient) error {
				released, err := resume(ctx, cmd, h, n, how)
				if err == nil || released > 0 {
					journal.Note(ctx, admin.ResumeEntry(n, how, released))
				}
				return err
			})
		},
	}
	cmd.Flags().StringVar(&rate, "rate", "", "release at a `RATE`, a second, minute or hour, such as 200/s or 90/m")
	cmd.Flags().BoolVar(&shift, "shift", false, "move the due times by the length of the hold")
	cmd.Flags().BoolVar(&dead, "dead", false, "turn the timers into dead letters")
	cmd.MarkFlagsMutuallyExclusive("rate", "shift", "dead")
	return cmd
}

// resume releases timers and shows its progress. It returns the number of timers that it has released itself.
func resume(ctx context.Context, cmd *cobra.Command, h *admin.Holds, n keys.Namespace,
	how schedule.Resume) (released int64, err error) {
	told := time.Now()
	var last admin.ResumeProgress
	err = h.Resume(ctx, n, how, func(p admin.ResumeProgress) {
		last, released = p, int64(p.Released)
		if time.Since(told) < 2*time.Second {
			return
		}
		told = time.Now()
		line := fmt.Sprintf("timerd: %d released, %d on hold", p.Released, p.Held)
		if p.Waits != "" {
			line = fmt.Sprintf("timerd: %d released by this command; it waits: %s", p.Released, p.Waits)
		}
		fmt.Fprintln(cmd.ErrOrStderr(), line)
	})
	if ctx.Err() != nil {
		fmt.Fprintf(cmd.ErrOrStderr(), "timerd: interrupted; the timerds release the rest of %s\n", n)
		return released, exitCode(exitFailed)
	}
	if err != nil {
		return released, err
	}
	for _, server := range h.Unreplicated(ctx) {
		fmt.Fprintf(cmd.ErrOrStderr(),
			"timerd: warning: no replica has the resume, so it is as durable as this server: %s\n", server)
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s resumed%s\n", n, showKept(how.Kind, last))
	return released, err
}

// showKept describes the timers kept by other holds, and their fate.
func showKept(kind schedule.ResumeKind, p admin.ResumeProgress) string {
	if p.Kept == 0 {
		return ""
	}
	by := make([]string, len(p.KeptBy))
	for i, n := range p.KeptBy {
		by[i] = n.String()
	}
	if len(by) == 0 { // no hold keeps them: they wait for the comparison
		by = []string{"the comparison of a restored Redis (timerd status)"}
	}
	becomes := map[schedule.ResumeKind]string{
		schedule.ResumeNow: "fire", schedule.ResumeRate: "fire at the rate", schedule.ResumeShift: "be shifted",
		schedule.ResumeDead: "become dead letters",
	}
	return fmt.Sprintf("; %s still on hold by %s, to %s at its end", counted(p.Kept, "timer"), strings.Join(by, ", "),
		becomes[kind])
}
