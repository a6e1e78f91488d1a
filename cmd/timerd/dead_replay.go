package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/admin"
	"github.com/timerd-io/timerd/internal/config"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

func newDeadReplay() *cobra.Command {
	var chosen selection
	var yes bool
	cmd := &cobra.Command{
		Use:   "replay [NAMESPACE | --id ID | --seq N]",
		Short: "Fire the timers of dead letters again",
		Long: `Set the timer of each dead letter again, to fire at once as attempt 1, and remove the letter from
its stream. A timer of the same key set meanwhile stays, and both fire. An interrupted replay can be
repeated: each timer is set once. Letters without a timer stay in the stream, each with a line that
gives the reason. So do letters whose slot of a cluster is moving, or whose master does not answer.
The exit code is then 1.` + selectionHelp,
		Example: `  timerd dead replay shop:order
  timerd dead replay --id shop:order:timeout:42@1763629200000.16 --yes`,
		Args: arguments(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			chosen.namespace = args
			return withDeadLetters(cmd, chosen, config.SectionNATS|config.SectionRedis,
				func(all *admin.Letters, j *admin.Journal, c config.Config) error {
					rdb, err := openRedis(cmd, c)
					if err != nil {
						return err
					}
					err = passingOver(cmd.Context(), cmd, rdb, func(s *schedule.Schedule) error {
						return replay(cmd, all, s, j, yes)
					})
					return errors.Join(err, rdb.Close())
				})
		},
	}
	selectionFlags(cmd, &chosen, &yes)
	return cmd
}

// replay sets timers again. A letter is deleted only after its timer is set, so that an interruption loses none.
func replay(cmd *cobra.Command, all *admin.Letters, sched *schedule.Schedule, journal *admin.Journal,
	yes bool) error {
	ctx, out := cmd.Context(), cmd.OutOrStdout()
	skipped := 0
	found, err := all.Find(ctx, func(l admin.Letter, why string) error {
		if why == "" {
			return nil
		}
		skipped++
		_, err := fmt.Fprintf(out, "%d skipped: %s\n", l.Seq, why)
		return err
	})
	if err != nil {
		return err
	}
	if n := len(found.Replayable); n > 0 && !yes {
		if err := confirm(cmd, fmt.Sprintf("%s to replay, each timer fires at once. Go on?",
			counted(int64(n), "dead letter"))); err != nil {
			return err
		}
	}
	replayed, err := all.Replay(ctx, sched, found.Replayable, func(l admin.Letter, fresh bool) error {
		how := "replayed"
		if !fresh {
			how = "was replayed or sent again before"
		}
		_, err := fmt.Fprintf(out, "%d %s: %s\n", l.Seq, how, keys.EncodeText(l.Event.Key.String()))
		return err
	})
	if replayed > 0 {
		journal.Note(ctx, all.Entry(event.EntryReplay, replayed))
	}
	fmt.Fprintf(out, "%d replayed, %d skipped\n", replayed, skipped)
	if err == nil && skipped > 0 {
		return exitCode(exitFailed)
	}
	return err
}
