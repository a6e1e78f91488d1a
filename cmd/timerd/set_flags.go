package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/internal/admin"
	"github.com/timerd-io/timerd/internal/policy"
)

// setFlags are the flags of timerd set.
type setFlags struct {
	nx, xx, asJSON bool
	attempt        int
	late           string
	dropLate       bool
	from           string
}

// whyNot says why nothing was set.
func (f setFlags) whyNot() string {
	if f.nx {
		return "the timer, or a key of its name, is there, and --nx was given"
	}
	return "there is no such timer and no such key, and --xx was given"
}

// lateOption reads --late and --drop-late. It returns nil if there are none.
func lateOption(cmd *cobra.Command, flags setFlags) (*client.SetOption, error) {
	if !cmd.Flags().Changed("late") {
		if flags.dropLate {
			return nil, usagef(cmd, "--drop-late goes with --late")
		}
		return nil, nil //nolint:nilnil // none is no error
	}
	most, err := admin.ParseDuration(flags.late)
	if err != nil || most < 0 || most > policy.Longest {
		return nil, usagef(cmd, "--late=%s: want a duration such as 30s or 5m, at most 10 years, or 0 for no limit", flags.late)
	}
	option := client.Late(most)
	if flags.dropLate {
		option = client.DropLate(most)
	}
	return &option, nil
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
