package doctor

import (
	"context"

	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/listener"
)

// aside tells of timers that wait because of their keys or subjects.
func (d *Redis) aside(ctx context.Context, r *diag.Findings) {
	all, err := query.SetAside(ctx, d.node)
	if err != nil {
		r.Warn(diag.CheckAside, "mend what else is found first", "cannot tell which timers are set aside: %v", err)
		return
	}
	for _, a := range all {
		key := keys.Abbreviate(a.Key.String())
		switch a.Reason {
		case query.AsideRights:
			app := keys.Namespace{App: a.Key.App}
			r.Warn(diag.CheckAside, "ACL SETUSER "+d.user(ctx)+" ~"+app.Glob()+"; or cancel them, as the user who set them",
				"%d timers wait because timerd may not read their keys, such as %s", a.Count, key)
		case query.AsideRefused:
			r.Warn(diag.CheckAside, "let timerd's NATS user publish to "+d.Names.Subject(a.Key, keys.Fired)+", and let TIMERS take it; if the timers are too late to fire, the same for "+
				d.Names.Subject(a.Key, keys.Dead)+" and TIMERS_DEAD; or cancel the timers before they are due",
				"%d timers wait because NATS refuses their subjects, such as that of %s", a.Count, key)
		}
	}
	if len(all) == 0 {
		r.OK(diag.CheckAside, "no timers")
	}
}

// apps warns if timers are set in more apps outside the namespaces than are followed.
func (d *Redis) apps(ctx context.Context, r *diag.Findings) {
	known, err := d.node.Apps(ctx)
	if err != nil || len(d.Namespaces) == 0 || !d.Events {
		return // the rights say why
	}
	outside := 0
	for _, app := range known {
		if !d.Namespaces.Cover(keys.Namespace{App: app}) {
			outside++
		}
	}
	if outside > listener.MaxFollowed {
		r.Warn(checkApps, "add the apps that matter to TIMERD_NAMESPACES",
			"timers are set in %d apps outside %s; of all but %d of them, only an audit finds DEL and EXPIRE", outside, d.Namespaces, listener.MaxFollowed)
	}
}
