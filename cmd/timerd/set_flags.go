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
	guards         policy.Guards
	from           string
}

// whyNot returns the reason why nothing was set.
func (f setFlags) whyNot() string {
	if f.nx {
		return "the timer, or a key of its name, is there, and --nx was given"
	}
	return "there is no such timer and no such key, and --xx was given"
}

// addConditions adds the common flags of set and repeat.
func (f *setFlags) addConditions(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.nx, "nx", false, "only if there is no such timer yet")
	cmd.Flags().BoolVar(&f.xx, "xx", false, "only if there is such a timer")
	cmd.Flags().StringVar(&f.late, "late", "",
		"become a dead letter rather than fire more than this `DURATION` after it is due; 0: never")
	cmd.Flags().BoolVar(&f.dropLate, "drop-late", false, "with --late: drop it, without a dead letter")
	cmd.Flags().StringVar(&f.guards.Unless, "unless", "", "do not fire if this `KEY` of Redis exists then")
	cmd.Flags().StringVar(&f.guards.If, "if", "", "fire only if this `KEY` of Redis exists then")
}

// conditions reads the flags of addConditions.
func (f *setFlags) conditions(cmd *cobra.Command) (options []client.SetOption, err error) {
	switch {
	case f.nx && f.xx:
		return nil, usagef(cmd, "--nx and --xx exclude each other")
	case f.nx:
		options = append(options, client.NX())
	case f.xx:
		options = append(options, client.XX())
	}
	for _, guard := range []struct {
		flag, key string
		option    func(string) client.SetOption
	}{{"unless", f.guards.Unless, client.Unless}, {"if", f.guards.If, client.If}} {
		if !cmd.Flags().Changed(guard.flag) {
			continue
		}
		if err := policy.CheckGuard(guard.key); err != nil {
			return nil, usagef(cmd, "--%s: %w", guard.flag, err)
		}
		options = append(options, guard.option(guard.key))
	}
	if !cmd.Flags().Changed("late") {
		if f.dropLate {
			return nil, usagef(cmd, "--drop-late goes with --late")
		}
		return options, nil
	}
	most, err := admin.ParseDuration(f.late)
	if err != nil || most < 0 || most > policy.Longest {
		return nil, usagef(cmd, "--late=%s: want a duration such as 30s or 5m, at most 10 years, or 0 for no limit",
			f.late)
	}
	limit := client.Late
	if f.dropLate {
		limit = client.DropLate
	}
	return append(options, limit(most)), nil
}

// payloadArg returns the argument PAYLOAD, if there is one, or standard input for -.
func payloadArg(cmd *cobra.Command, args []string) ([]byte, error) {
	switch {
	case len(args) == 0:
		return []byte{}, nil
	case args[0] == "-":
		return readPayload(cmd)
	}
	return []byte(args[0]), nil
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
