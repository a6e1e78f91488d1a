package console

import (
	"github.com/timerd-io/timerd/internal/bulk"
	"github.com/timerd-io/timerd/schedule"
)

func selectionOf(q schedule.Query) bulk.Selection {
	return bulk.Selection{Namespace: q.Namespace, Before: q.Before}
}
