package schedule

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/keys"
)

// Call is one run of a step on a partition.
type Call struct {
	Partition keys.Partition
	Args      []any
	// ArgsOn returns the arguments instead of Args, where they depend on the server that is about to run the step.
	ArgsOn func(server *redis.Client) []any
}

// argsOn returns the arguments for a run on a server.
func (c *Call) argsOn(server *redis.Client) []any {
	if c.ArgsOn != nil {
		return c.ArgsOn(server)
	}
	return c.Args
}

// Reply is the reply of a step. An element of the wrong type reads as 0 or as empty.
type Reply []any

// ReadReply returns the reply of a step that returns head elements, and then rows of row elements each; no rows if
// row is 0.
func ReadReply(cmd *redis.Cmd, head, row int) (Reply, error) {
	if cmd.Err() == nil && cmd.Val() == nil {
		return nil, errors.New("no reply: the server, or the connection to it, was lost before")
	}
	reply, err := cmd.Slice()
	if err == nil && (len(reply) < head || row == 0 && len(reply) > head || row > 0 && (len(reply)-head)%row != 0) {
		err = fmt.Errorf("unexpected reply of %d elements", len(reply))
	}
	return reply, err
}

// Int returns an element that is an integer.
func (r Reply) Int(i int) int64 {
	n, _ := r[i].(int64)
	return n
}

// Text returns an element that is a text.
func (r Reply) Text(i int) string {
	s, _ := r[i].(string)
	return s
}

// List returns an element that is a list.
func (r Reply) List(i int) Reply {
	l, _ := r[i].([]any)
	return l
}

// texts returns the elements of a list of texts.
func (r Reply) texts() []string {
	all := make([]string, len(r))
	for i := range r {
		all[i] = r.Text(i)
	}
	return all
}

// runOn runs the calls with the indices in todo on one server. A server that does not know the step gets it.
func runOn(ctx context.Context, server *redis.Client, step Script, calls []Call, todo []int, replies []*redis.Cmd) {
	unknown := pipeline(ctx, server, step, calls, todo, replies)
	if len(unknown) == 0 {
		return
	}
	if err := step.bring(ctx, server); err != nil {
		for _, i := range unknown {
			replies[i].SetErr(err)
		}
		return
	}
	pipeline(ctx, server, step, calls, unknown, replies)
}

// pipeline runs the calls with the indices in todo on one server. It returns the indices of calls that the server did
// not run because it does not know the step.
func pipeline(ctx context.Context, server *redis.Client, step Script, calls []Call, todo []int,
	replies []*redis.Cmd) (unknown []int) {
	pipe := server.Pipeline()
	for _, i := range todo {
		// No key has the prefix as its name. So the server refuses the step before it begins while the slot is moving
		// and the index may be torn apart.
		replies[i] = step.queue(ctx, pipe, server, []string{calls[i].Partition.Prefix()}, calls[i].argsOn(server))
	}
	_, _ = pipe.Exec(ctx) // each reply has its own error
	for _, i := range todo {
		if isUnknown(replies[i].Err()) {
			unknown = append(unknown, i)
		}
	}
	return unknown
}

// IsMoving reports whether a step failed because its slot is not, or not completely, on the cluster server that was
// asked. The step changed nothing, and works again once the move is over.
func IsMoving(err error) bool {
	_, moved := redis.IsMovedError(err)
	_, ask := redis.IsAskError(err)
	return moved || ask || redis.IsTryAgainError(err)
}

// isAnswer reports whether an error is an answer of a server.
func isAnswer(err error) bool {
	_, is := errors.AsType[redis.Error](err)
	return is
}

// IsRefused reports whether the server answered a step with an error about this step only, rather than that it cannot
// serve now.
func IsRefused(err error) bool {
	var reply redis.Error
	return errors.As(err, &reply) && !redis.IsLoadingError(err) && !redis.IsReadOnlyError(err) &&
		!redis.IsMasterDownError(err) &&
		!redis.IsClusterDownError(err)
}
