package doctor

import (
	"context"

	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/rights"
)

// rights tells whether timerd may do all that it does, on its index and in its namespaces.
func (d *Redis) rights(ctx context.Context, r *diag.Findings) {
	lacking, err := rights.Needs{Namespaces: d.Namespaces, Events: d.Events}.Lacking(ctx, d.node)
	if err != nil {
		r.Fail(diag.CheckRights, "run this again", "cannot tell what the user may do: %v", err)
		return
	}
	if f := lacking.Finding(d.Events); f != nil {
		r.Add(*f)
		return
	}
	where := "on its index"
	if len(d.Namespaces) > 0 {
		where += " and in " + d.Namespaces.String()
	}
	r.OK(diag.CheckRights, "user %s may do all that timerd does %s", lacking.User, where)
}
