package console

import (
	"context"

	"github.com/timerd-io/timerd/internal/admin"
	"github.com/timerd-io/timerd/internal/history"
	"github.com/timerd-io/timerd/internal/pulse"
	"github.com/timerd-io/timerd/internal/status"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/late"
	"github.com/timerd-io/timerd/retry"
	"github.com/timerd-io/timerd/schedule"
)

// Index is the reading side of a schedule.
type Index interface {
	Forecast(ctx context.Context, minutes int) (schedule.Forecast, error)
	Find(ctx context.Context, q schedule.Query, from schedule.Place, most schedule.Most) (schedule.Found, error)
	Inspect(ctx context.Context, key keys.Key, payload int) (schedule.Inspection, error)
	RepeatingFrom(ctx context.Context, n keys.Namespace, from schedule.RepeatingPlace, most int) ([]keys.Key, schedule.RepeatingPlace, int, error)
	Repetitions(ctx context.Context, names []string) ([]schedule.KeyState, error)
}

// Sources is what a console reads from. Nothing in it changes anything.
type Sources struct {
	Status   func(context.Context) *status.Report
	Index    Index
	Holds    func(context.Context) ([]admin.HoldView, error)
	History  *history.Reader
	Tail     *history.Tail
	Pulse    func() pulse.View
	Policies retry.Policies
	Late     late.Rules // of timers without a limit of their own
}
