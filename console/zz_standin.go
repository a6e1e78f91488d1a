package console

import (
	"time"

	"github.com/timerd-io/timerd/internal/bulk"
	"github.com/timerd-io/timerd/schedule"
)

type bulkFound = bulk.Found

func millisOf(t time.Time) schedule.Millis { return schedule.MillisOf(t) }

func selectionOf(q schedule.Query) bulk.Selection {
	return bulk.Selection{Namespace: q.Namespace, Before: q.Before}
}

func letterTallies(name string, d any) []Tally { return nil }
func isPlaceFault(err error) bool              { return false }
