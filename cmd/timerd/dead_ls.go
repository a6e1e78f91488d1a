package main

import (
	"cmp"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/timerd-io/timerd/internal/admin"
	"github.com/timerd-io/timerd/internal/config"
	"github.com/timerd-io/timerd/keys"
)

func newDeadLs() *cobra.Command {
	var limit int
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "ls [NAMESPACE]",
		Short: "List dead letters, oldest first",
		Long: `List dead letters, oldest first, and how many there are. On a terminal the lines fit its width;
timerd dead show prints a whole letter.

` + namespaceHelp,
		Example: `  timerd dead ls
  timerd dead ls shop:order --json --limit 0 > dead.jsonl`,
		Args: arguments(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if limit < 0 {
				return usagef(cmd, "--limit=%d: want 0, for all, or more", limit)
			}
			return withDeadLetters(cmd, selection{namespace: args}, config.SectionNATS,
				func(all *admin.Letters, _ *admin.Journal, _ config.Config) error {
					return listDead(cmd, all, limit, asJSON)
				})
		},
	}
	cmd.Flags().IntVar(&limit, "limit", 100, "how many to list; 0 for all")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the events themselves, each in a line of JSON")
	return cmd
}

func listDead(cmd *cobra.Command, all *admin.Letters, limit int, asJSON bool) error {
	table := tableFor(cmd.OutOrStdout(), true,
		column{title: "SEQ"},
		column{title: "STORED", spare: 2},
		column{title: "KEY", middle: true, least: 20},
		column{title: "ATTEMPT", spare: 3},
		column{title: "REASON", least: 12},
		column{title: "LAST ERROR", least: 12, spare: 4},
		column{title: "ID", spare: 1},
	)
	rows := 0
	more := false
	err := all.Each(cmd.Context(), func(l admin.Letter) (bool, error) {
		if limit > 0 && rows == limit {
			more = true
			return false, nil
		}
		rows++
		if asJSON {
			return true, printLetterJSON(cmd.OutOrStdout(), l)
		}
		addLetter(table, l)
		return true, table.err
	})
	err = cmp.Or(err, table.flush())
	switch {
	case more:
		fmt.Fprintf(cmd.ErrOrStderr(), "timerd: there are more than these %d; --limit 0 lists all\n", rows)
	case !asJSON && err == nil:
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s\n", counted(int64(rows), "dead letter"))
	}
	return err
}

// addLetter adds the row of a letter.
func addLetter(t *table, l admin.Letter) {
	key, attempt, most := l.Subject, "", t.screen.most()
	reason, last := "not an event: "+showText(l.Fault, most), ""
	if l.Fault == "" {
		key, attempt = keys.EncodeText(l.Event.Key.String()), showAttempt(l.Event.Attempt, l.Event.MaxAttempts)
		reason, last = showText(l.Event.DeadReason, most), showText(l.Event.LastError, most)
	}
	t.row(l.Seq, l.Stored.UTC().Format(timeLayout), key, attempt, reason, last, showText(l.ID(), most))
}

// letterView is a letter that is not an event, as --json shows it.
type letterView struct {
	ID         string `json:"id,omitempty"`
	Seq        uint64 `json:"seq"`
	StoredAt   string `json:"storedat"`
	Subject    string `json:"natssubject"`
	Fault      string `json:"fault"`
	DataBase64 []byte `json:"data_base64"`
}

// printLetterJSON prints the event of a letter, or its letterView, in one line.
func printLetterJSON(w io.Writer, l admin.Letter) error {
	if l.Fault != "" {
		return writeJSON(w, letterView{l.MsgID, l.Seq, l.Stored.UTC().Format(timeLayout), l.Subject, l.Fault, l.Data})
	}
	return printEventJSON(w, l.Data)
}
