package main

import (
	"errors"
	"fmt"
	"log/slog"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/timerd-io/timerd/internal/config"
	"github.com/timerd-io/timerd/internal/deadletters"
	"github.com/timerd-io/timerd/keys"
)

func newDeadLs() *cobra.Command {
	var limit int
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "ls [NAMESPACE]",
		Short: "List dead letters, oldest first",
		Long:  "List dead letters, oldest first, and how many there are.\n\n" + namespaceHelp,
		Example: `  timerd dead ls
  timerd dead ls shop:order --json --limit 0 > dead.jsonl`,
		Args: arguments(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if limit < 0 {
				return usagef(cmd, "--limit=%d: want 0, for all, or more", limit)
			}
			return withDeadLetters(cmd, selection{namespace: args}, config.SectionNATS, func(all *deadletters.Letters, _ config.Config, _ *slog.Logger) error {
				return listDead(cmd, all, limit, asJSON)
			})
		},
	}
	cmd.Flags().IntVar(&limit, "limit", 100, "how many to list; 0 for all")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the events themselves, each in a line of JSON")
	return cmd
}

func listDead(cmd *cobra.Command, all *deadletters.Letters, limit int, asJSON bool) error {
	table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
	rows := 0
	more := false
	err := all.Each(cmd.Context(), func(l deadletters.Letter) (bool, error) {
		if limit > 0 && rows == limit {
			more = true
			return false, nil
		}
		rows++
		at := l.Stored.UTC().Format(timeLayout)
		if asJSON && l.Fault != "" {
			return true, writeJSON(cmd.OutOrStdout(), letterView{l.MsgID, l.Seq, at, l.Subject, l.Fault, l.Data})
		}
		if asJSON {
			return true, printFiringJSON(cmd.OutOrStdout(), l.Data)
		}
		if rows == 1 {
			fmt.Fprintln(table, "SEQ\tSTORED\tKEY\tATTEMPT\tREASON\tLAST ERROR\tID")
		}
		if l.Fault != "" {
			_, err := fmt.Fprintf(table, "%d\t%s\t%s\t\tnot an event: %s\t\t%s\n", l.Seq, at, l.Subject, showText(l.Fault), showText(l.ID()))
			return true, err
		}
		_, err := fmt.Fprintf(table, "%d\t%s\t%s\t%s\t%s\t%s\t%s\n", l.Seq, at, keys.EncodeText(l.Event.Key.String()), showAttempt(l.Event),
			showText(l.Event.DeadReason), showText(l.Event.LastError), l.ID())
		return true, err
	})
	err = errors.Join(err, table.Flush())
	switch {
	case more:
		fmt.Fprintf(cmd.ErrOrStderr(), "timerd: there are more than these %d; --limit 0 lists all\n", rows)
	case !asJSON && err == nil:
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s\n", countLetters(rows))
	}
	return err
}

// letterView is a letter that is no event, as --json shows it.
type letterView struct {
	ID         string `json:"id,omitempty"`
	Seq        uint64 `json:"seq"`
	StoredAt   string `json:"storedat"`
	Subject    string `json:"natssubject"`
	Fault      string `json:"fault"`
	DataBase64 []byte `json:"data_base64"`
}

// showText returns a text in one cell of a table.
func showText(s string) string {
	if s == "" {
		return ""
	}
	return showPayload([]byte(s), "", lsPayload)
}
