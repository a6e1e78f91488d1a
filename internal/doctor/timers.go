package doctor

import (
	"context"

	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/listener"
)

// apps warns if more apps outside the namespaces have timers than the listener follows.
func (d *Redis) apps(ctx context.Context, r *diag.Findings) {
	known, err := d.node.Apps(ctx)
	if err != nil || len(d.Namespaces) == 0 || !d.Events {
		return // the check of rights has the reason
	}
	outside := 0
	for _, app := range known {
		if !d.Namespaces.Cover(keys.Namespace{App: app}) {
			outside++
		}
	}
	if outside > listener.MaxFollowed {
		r.Warn("add the apps that matter to TIMERD_NAMESPACES",
			"timers are set in %d apps outside %s; of all but %d of them, only an audit finds DEL and EXPIRE", outside,
			d.Namespaces, listener.MaxFollowed)
	}
}
