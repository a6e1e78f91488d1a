package main

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/timerd-io/timerd/keys"
)

// Exit codes.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2 // bad usage or configuration
)

// exitCode ends a command that has printed its fault itself.
type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

// usageError is a fault of the command line.
type usageError struct {
	command string // the command with the help
	err     error
}

func (e *usageError) Error() string { return e.err.Error() }

func (e *usageError) Unwrap() error { return e.err }

// usagef returns a *usageError.
func usagef(cmd *cobra.Command, format string, args ...any) error {
	return &usageError{cmd.CommandPath(), fmt.Errorf(format, args...)}
}

const keyHelp = `KEY is app:module:type:id, as it is in Redis or as timerd prints it.`

// checkKey returns a *usageError for a KEY that is not a timer's.
func checkKey(cmd *cobra.Command, key string) error {
	if _, err := keys.Parse(key); err != nil {
		return usagef(cmd, "KEY %q: %w", keys.Abbreviate(key), err)
	}
	return nil
}

const namespaceHelp = `NAMESPACE is app[:module[:type]]; * or a part left out stands for any.`

// namespaceArg reads the argument NAMESPACE; left out, it means every timer.
func namespaceArg(cmd *cobra.Command, args []string) (keys.Namespace, error) {
	if len(args) == 0 {
		return keys.Namespace{}, nil
	}
	n, err := keys.ParseNamespace(args[0])
	if err != nil {
		return n, &usageError{cmd.CommandPath(), err}
	}
	return n, nil
}

// arguments turns an argument check's error into a *usageError that names the wanted arguments.
func arguments(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if check(cmd, args) == nil {
			return nil
		}
		_, want, _ := strings.Cut(cmd.Use, " ")
		got := fmt.Sprintf("%d arguments", len(args))
		switch len(args) {
		case 0:
			got = "nothing"
		case 1:
			got = fmt.Sprintf("%q", args[0])
		}
		return usagef(cmd, "want %s, got %s", cmp.Or(want, "no arguments"), got)
	}
}

// noSuchCommand is the argument check of a command with only subcommands, or without other arguments.
func noSuchCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	near := ""
	cmd.SuggestionsMinimumDistance = cmd.Root().SuggestionsMinimumDistance
	if names := cmd.SuggestionsFor(args[0]); len(names) > 0 {
		near = "; did you mean " + strings.Join(names, " or ") + "?"
	}
	return usagef(cmd, "unknown command %q%s", args[0], near)
}

// flagError turns the fault of a flag into a *usageError, with the most similar flag. The flags of an unknown command
// are unknown too: then the command is the fault.
func flagError(cmd *cobra.Command, err error) error {
	if args := cmd.Flags().Args(); len(args) > 0 && cmd.HasSubCommands() && !strings.Contains(cmd.Use, " ") {
		return noSuchCommand(cmd, args)
	}
	if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok && unknown.GetSpecifiedShortnames() == "" {
		var known []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { known = append(known, f.Name) })
		if near := keys.Nearest(unknown.GetSpecifiedName(), known); near != "" {
			err = fmt.Errorf("%w; did you mean --%s?", err, near)
		}
	}
	if bad, ok := errors.AsType[*pflag.InvalidValueError](err); ok && bad.GetFlag().Value.Type() == "int" {
		err = fmt.Errorf("--%s=%s: want a whole number", bad.GetFlag().Name, bad.GetValue())
	}
	return &usageError{cmd.CommandPath(), err}
}
