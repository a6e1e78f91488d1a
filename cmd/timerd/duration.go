package main

import (
	"math"
	"time"

	"github.com/spf13/cobra"

	"github.com/timerd-io/timerd/internal/admin"
	"github.com/timerd-io/timerd/internal/diag"
)

const day = 24 * time.Hour

// showAbout formats a duration with a sensible precision: milliseconds below ten seconds, minutes from a day on.
func showAbout(d time.Duration) string {
	switch {
	case d == math.MaxInt64: // the most that time.Until can return
		return "over 292 years"
	case d < 10*time.Second:
		d = d.Round(time.Millisecond)
	case d < day:
		d = d.Round(time.Second)
	default:
		d = d.Round(time.Minute)
	}
	return diag.Duration(d)
}

// durationFlag is the value of a flag that takes a duration with days.
type durationFlag time.Duration

// Set reads the flag's value.
func (f *durationFlag) Set(s string) error {
	d, err := admin.ParseDuration(s)
	*f = durationFlag(d)
	return err
}

// String returns the value for a help text, where an empty text means no default.
func (f *durationFlag) String() string {
	if *f == 0 {
		return ""
	}
	return diag.Duration(time.Duration(*f))
}

// Type is the word for the value in a help text.
func (f *durationFlag) Type() string { return "duration" }

// momentFlag reads a flag with a moment, or returns nil if it is not given.
func momentFlag(cmd *cobra.Command, name, value string) (*admin.Moment, error) {
	if value == "" {
		return nil, nil //nolint:nilnil // a missing flag is no error
	}
	m, err := admin.ParseMoment(value)
	if err != nil {
		return nil, usagef(cmd, "--%s %w", name, err)
	}
	return &m, nil
}
