package standalone

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/timerd-io/timerd/internal/connect"
	"github.com/timerd-io/timerd/internal/deliver"
	"github.com/timerd-io/timerd/internal/service"
	"github.com/timerd-io/timerd/schedule"
)

// clockWithin bounds a reading of the virtual clock.
const clockWithin = time.Second

// Webhooks are the settings of Deliver.
type Webhooks struct {
	// Load reads the endpoints. Its error names all faults.
	Load func() (*deliver.Config, error)
	// Reload asks for another call of Load; nil: never.
	Reload  <-chan os.Signal
	Version string // for the log
	Logger  *slog.Logger
}

// Deliver calls endpoints until ctx ends, as timerd deliver does, and by the clock of the installation. Call it while
// Run runs.
func (i *Installation) Deliver(ctx context.Context, w Webhooks) error {
	d := service.Delivery{Config: i.Config, Version: w.Version, Calls: deliver.DefaultCalls, Load: w.Load,
		Reload: w.Reload, Logger: w.Logger}
	d.Config.Service.HTTPAddr = "" // the metrics are those of the timerd
	if !i.virtual {
		return d.Run(ctx)
	}
	rdb := connect.NewRedisClient(i.Config.Redis)
	d.Clock = virtualClock(schedule.NewVirtual(rdb, schedule.DefaultMaxPayload))
	return errors.Join(d.Run(ctx), rdb.Close())
}

// virtualClock returns a reader of a virtual clock. Without an answer of Redis it goes on from the last one.
func virtualClock(s *schedule.Schedule) func() time.Time {
	var known atomic.Int64 // the lead over this machine's clock, in ns
	return func() time.Time {
		ctx, cancel := context.WithTimeout(context.Background(), clockWithin)
		defer cancel()
		if ahead, err := s.Ahead(ctx); err == nil {
			known.Store(int64(ahead))
		}
		return time.Now().Add(time.Duration(known.Load()))
	}
}
