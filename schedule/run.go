package schedule

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"
)

// runOn runs those of the calls whose indices are in todo on one server. A server that does not know the script gets it: a
// failover forgets scripts, and so does SCRIPT FLUSH.
func runOn(ctx context.Context, server *redis.Client, script *redis.Script, calls []Call, todo []int, replies []*redis.Cmd) {
	unknown := pipeline(ctx, server, script, calls, todo, replies)
	if len(unknown) == 0 {
		return
	}
	if err := script.Load(ctx, server).Err(); err != nil {
		for _, i := range unknown {
			replies[i].SetErr(err)
		}
		return
	}
	pipeline(ctx, server, script, calls, unknown, replies)
}

// pipeline runs those of the calls whose indices are in todo on one server. It returns the indices of those that the
// server did not run because it does not know the script.
func pipeline(ctx context.Context, server *redis.Client, script *redis.Script, calls []Call, todo []int, replies []*redis.Cmd) (unknown []int) {
	pipe := server.Pipeline()
	for _, i := range todo {
		// No key has the prefix as its name. So the server refuses the script before it
		// begins while the slot is moving and the index may be torn apart.
		replies[i] = script.EvalSha(ctx, pipe, []string{calls[i].Partition.Prefix()}, calls[i].Args...)
	}
	_, _ = pipe.Exec(ctx) // each reply has its own error
	for _, i := range todo {
		if redis.HasErrorPrefix(replies[i].Err(), "NOSCRIPT") {
			unknown = append(unknown, i)
		}
	}
	return unknown
}

// IsMoving tells whether a step failed because its slot is not, or not as a whole, on the server of a cluster that was
// asked. It changed nothing, and works again once the move is over.
func IsMoving(err error) bool {
	_, moved := redis.IsMovedError(err)
	_, ask := redis.IsAskError(err)
	return moved || ask || redis.IsTryAgainError(err)
}

// IsRefused tells whether a step failed by an answer of the server that another step need not get: one that does not say
// that the server cannot serve now.
func IsRefused(err error) bool {
	var reply redis.Error
	return errors.As(err, &reply) && !redis.IsLoadingError(err) && !redis.IsReadOnlyError(err) && !redis.IsMasterDownError(err) &&
		!redis.IsClusterDownError(err)
}
