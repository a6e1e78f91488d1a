package schedule

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// Script is one of the schedule's steps, or a script of another package that only reads. A step runs as a function of a
// library where the server has that, and else as a script: so it also runs before the library is loaded, where a server
// is out of memory and refuses it, and for a caller without the right to load it.
type Script struct {
	name    string // of a step; "" for a script
	script  *redis.Script
	scripts *scripts
	loaded  *stepServers
}

// Run runs the step on a server, or in a cluster on the one that has its keys.
func (s Script) Run(ctx context.Context, server redis.UniversalClient, names []string, args ...any) *redis.Cmd {
	one, ok := server.(*redis.Client)
	if !ok || !s.isFunctionOn(one) {
		return s.script.Run(ctx, server, names, args...)
	}
	cmd := one.FCall(ctx, s.function(), names, args...)
	if !isUnknown(cmd.Err()) {
		return cmd
	}
	if s.bring(ctx, one) == nil && s.isFunctionOn(one) {
		return one.FCall(ctx, s.function(), names, args...)
	}
	return s.script.Run(ctx, server, names, args...)
}

// queue adds a run on a server to a pipeline.
func (s Script) queue(ctx context.Context, pipe redis.Pipeliner, server *redis.Client, names []string,
	args []any) *redis.Cmd {
	if s.isFunctionOn(server) {
		return pipe.FCall(ctx, s.function(), names, args...)
	}
	return s.script.EvalSha(ctx, pipe, names, args...)
}

// bring loads a step that a server does not know: a failover forgets scripts, and so do SCRIPT FLUSH and FUNCTION
// FLUSH. A server that refuses the library gets the script.
func (s Script) bring(ctx context.Context, server *redis.Client) error {
	if s.isFunctionOn(server) && s.loaded.load(ctx, server, s.scripts.steps()) == nil {
		return nil
	}
	return s.script.Load(ctx, server).Err()
}

func (s Script) function() string { return s.scripts.steps().function(s.name) }

func (s Script) isFunctionOn(server *redis.Client) bool {
	return s.name != "" && s.loaded.has(server, s.scripts)
}

// isUnknown reports whether an error says that a server has no such script or function.
func isUnknown(err error) bool {
	return redis.HasErrorPrefix(err, "NOSCRIPT") || redis.HasErrorPrefix(err, "Function not found")
}
