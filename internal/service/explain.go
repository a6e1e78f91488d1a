package service

import (
	"context"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/config"
	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/rights"
	"github.com/timerd-io/timerd/schedule"
)

// explain returns the fix for a permanent error of Redis at the start: the server lacks functions, Lua or another
// command, or the user lacks rights, all of them named. Any other error is returned as it is.
func explain(ctx context.Context, rdb redis.UniversalClient, c config.Config, err error) error {
	server := "Redis at " + c.Redis.Shown
	refusal := diag.Refusal(err)
	switch {
	case lacksCommand(err) && strings.Contains(strings.ToUpper(err.Error()), "FUNCTION"): // like Dragonfly and KeyDB
		return &diag.Fault{What: server + " has no functions",
			Remedy: "use Redis 7.0 or later, or Valkey, and do not rename FUNCTION", Err: err}
	case refusal.IsPermanent():
		return diag.Wrap(server, refusal)
	case !lacksCommand(err) && !redis.IsPermissionError(err):
		return err
	}
	nodes, _ := schedule.New(rdb, schedule.DefaultMaxPayload).Nodes(ctx) // without a node, err is returned as it is
	needs := rights.Needs{Namespaces: c.Service.Namespaces, Events: c.Service.KeyspaceEvents}
	for _, node := range nodes {
		lacking, unknown := needs.Lacking(ctx, node)
		if unknown != nil || !lacking.Stops() {
			continue
		}
		found := diag.Findings{*lacking.Finding(needs.Events)}
		c.Clients().On(node.Name()).Address(found)
		return &diag.Fault{What: server + ": " + found[0].Text, Remedy: found[0].Fix, Err: err}
	}
	return err
}

// lacksCommand reports whether an error means that the server does not know a command.
func lacksCommand(err error) bool { return redis.HasErrorPrefix(err, "unknown command") }
