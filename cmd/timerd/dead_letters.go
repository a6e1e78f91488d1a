package main

import (
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"

	"github.com/timerd-io/timerd/internal/admin"
	"github.com/timerd-io/timerd/internal/config"
)

// selection selects the letters of a command.
type selection struct {
	admin.LetterSelection
	namespace []string // the argument, or nothing
	seq       uint64   // the flag; 0 if not given
}

// withDeadLetters calls f with the selected letters, the journal, and the sections of the configuration. If an id or a
// number is given, the letter must exist.
func withDeadLetters(cmd *cobra.Command, chosen selection, sections config.Section,
	f func(*admin.Letters, *admin.Journal, config.Config) error) error {
	given := len(chosen.namespace)
	for _, flag := range []bool{chosen.ID != "", chosen.seq > 0} {
		if flag {
			given++
		}
	}
	if given > 1 {
		return usagef(cmd, "NAMESPACE, --id and --seq exclude each other")
	}
	if chosen.seq > 0 {
		chosen.Seqs = []uint64{chosen.seq}
	}
	var err error
	if chosen.Namespace, err = namespaceArg(cmd, chosen.namespace); err != nil {
		return err
	}
	return withJetStream(cmd, sections, func(js jetstream.JetStream, c config.Config) error {
		all, err := admin.SelectLetters(cmd.Context(), js, c.NATS.Streams.Names, chosen.LetterSelection)
		if err != nil {
			return err
		}
		return f(all, journalOn(cmd, js, c.Streams()), c)
	})
}

const selectionHelp = `

It applies to the dead letters of NAMESPACE, or to those with --id or --seq, or to all. The command
prints how many there are, and asks whether to go on, unless there are none or --yes is given.
Without an answer nothing happens and the exit code is 1.

` + namespaceHelp

// selectionFlags adds the flags that select letters.
func selectionFlags(cmd *cobra.Command, s *selection, yes *bool) {
	cmd.Flags().StringVar(&s.ID, "id", "", "only letters with this id, of any namespace; timerd dead ls shows it")
	cmd.Flags().Uint64Var(&s.seq, "seq", 0, "only the letter with this number in its stream, of any namespace")
	cmd.Flags().BoolVarP(yes, "yes", "y", false, "do not ask")
}
