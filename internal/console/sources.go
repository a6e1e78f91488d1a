package console

import (
	"context"

	"github.com/timerd-io/timerd/internal/admin"
	"github.com/timerd-io/timerd/internal/history"
	"github.com/timerd-io/timerd/internal/policy"
	"github.com/timerd-io/timerd/internal/status"
	"github.com/timerd-io/timerd/schedule"
)

// Sources are the sources of a console's pages. It changes nothing in them.
type Sources struct {
	Status   func(context.Context) *status.Report
	Index    *schedule.Schedule
	Holds    func(context.Context) ([]admin.HoldView, error)
	History  *history.Reader
	Tail     *history.Tail
	Pulse    func() history.LiveStats
	Policies policy.Rules[policy.Retry]
	Late     policy.Rules[policy.Limit]     // of timers without a limit of their own
	Guards   policy.Rules[policy.GuardRule] // of timers without guards of their own
}
