package main

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

func newExport() *cobra.Command {
	return &cobra.Command{
		Use:        "export [NAMESPACE]",
		SuggestFor: []string{"dump", "backup"},
		Short:      "Write timers as lines that timerd set --from reads",
		Long: `Write every timer that nobody has claimed as a line of JSON: pending, held, owed and set aside, and
those beside a newer timer of their key. timerd set --from sets them elsewhere with all that they
are: due time, past or not, payload, attempt, origin, limit, trace, repetition. There they fire the
same events. A timer that is there already is left alone.

Claimed timers fire here; they are named, and the exit code is 1. The timers stay here too: stop
timerd before, or hold the namespace, so that they do not fire in both places. Holds are not
written.

` + namespaceHelp,
		Example: `  timerd export >timers.jsonl
  timerd export shop:order | ssh elsewhere timerd set --from -`,
		Args: arguments(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			namespace, err := namespaceArg(cmd, args)
			if err != nil {
				return err
			}
			return withSchedule(cmd, func(ctx context.Context, s *schedule.Schedule, _ redis.UniversalClient) error {
				return export(ctx, cmd, s, namespace)
			})
		},
	}
}

// export writes the timers of a namespace.
func export(ctx context.Context, cmd *cobra.Command, s *schedule.Schedule, namespace keys.Namespace) error {
	out := bufio.NewWriterSize(cmd.OutOrStdout(), 64<<10)
	lines := json.NewEncoder(out)
	lines.SetEscapeHTML(false)
	claimed := 0
	count, err := query.Export(ctx, s, namespace,
		func(t query.ExportedTimer) error { return lines.Encode(exportLine(t)) },
		func(t query.Timer) {
			claimed++
			fmt.Fprintf(cmd.ErrOrStderr(), "timerd: %s, due %s, is claimed and fires here\n",
				keys.EncodeText(t.Key.String()), t.Due.UTC().Format(timeLayout))
		})
	err = errors.Join(err, out.Flush())
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("interrupted after %d timers: %w", count, err)
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "timerd: %d written, %d claimed\n", count, claimed)
	if err == nil && claimed > 0 {
		return exitCode(exitFailed)
	}
	return err
}

// exportLine returns a timer as timerd set --from reads it.
func exportLine(t query.ExportedTimer) timerLine {
	l := timerLine{State: string(t.State), Exported: t.Exported}
	key := t.Key.String()
	if utf8.ValidString(key) {
		l.Key = key
	} else {
		text := base64.StdEncoding.EncodeToString([]byte(key))
		l.KeyBase64 = &text
	}
	switch {
	case t.Status != schedule.PayloadPresent:
	case utf8.Valid(t.Payload):
		l.Payload, _ = json.Marshal(string(t.Payload)) // a string always works
	default:
		text := base64.StdEncoding.EncodeToString(t.Payload)
		l.PayloadBase64 = &text
	}
	return l
}
