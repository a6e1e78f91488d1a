package producers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/torture/internal/history"
)

// replicated is how long an operation waits for its replica. Without it a failover may lose
// what was acknowledged, and its outcome is unknown.
const replicated = 500 * time.Millisecond

// on executes an operation on Redis and returns it with what became of it. The clock is read
// before and after, in the same transaction.
func (p *Producers) on(ctx context.Context, op history.Op) history.Op {
	op.Invoked = time.Now().UnixMilli()
	err := p.transact(ctx, &op)
	op.Ended = time.Now().UnixMilli() + 1
	var refused redis.Error
	var dial *net.OpError
	switch {
	case err == nil:
		op.Outcome = history.OK
	case errors.Is(err, errNotReplicated):
		op.Outcome = history.Unknown
	case errors.As(err, &refused), errors.As(err, &dial) && dial.Op == "dial":
		op.Outcome = history.Failed
	default:
		op.Outcome = history.Unknown
	}
	if err != nil {
		op.Error = err.Error()
		p.Redis.Refresh(ctx)
	}
	p.History.Write(history.Record{Op: &op})
	return op
}

// errNotReplicated says that no replica is known to have a write.
var errNotReplicated = errors.New("no replica has it")

func (p *Producers) transact(ctx context.Context, op *history.Op) (err error) {
	node, err := p.Redis.Node(ctx, op.Key)
	if err != nil {
		return fmt.Errorf("%w: %w", &net.OpError{Op: "dial", Err: err}, err) // nobody was asked
	}
	conn := node.Conn()
	defer func() { _ = conn.Close() }()
	var before, after *redis.TimeCmd
	var reply *redis.Cmd
	var expires *redis.DurationCmd
	_, err = conn.TxPipelined(ctx, func(tx redis.Pipeliner) error {
		before = tx.Time(ctx)
		reply = command(ctx, tx, *op)
		expires = tx.PExpireTime(ctx, op.Key)
		after = tx.Time(ctx)
		return nil
	})
	if after.Err() != nil {
		return err
	}
	op.Before, op.After = before.Val().UnixMilli(), after.Val().UnixMilli()
	value, err := reply.Result()
	if err != nil {
		return err
	}
	op.Reply = fmt.Sprint(value)
	switch op.Kind {
	case history.Timer:
		if op.Due, err = strconv.ParseInt(op.Reply, 10, 64); err != nil {
			return fmt.Errorf("timer_set answered %q: %w", op.Reply, err)
		}
	case history.Set, history.Hash, history.Expire:
		if at := expires.Val(); at > 0 {
			op.Due = at.Milliseconds()
		}
	}
	if !p.Replicated {
		return nil
	}
	switch have, err := conn.Do(ctx, "WAIT", 1, replicated.Milliseconds()).Int(); {
	case err != nil:
		return fmt.Errorf("%w: %w", errNotReplicated, err)
	case have < 1:
		return errNotReplicated
	}
	return nil
}

// command queues the command of an operation.
func command(ctx context.Context, tx redis.Pipeliner, op history.Op) *redis.Cmd {
	switch op.Kind {
	case history.Set:
		return tx.Do(ctx, "SET", op.Key, op.Payload, "PX", op.TTL)
	case history.Hash:
		tx.Del(ctx, op.Key)
		tx.HSet(ctx, op.Key, hashField, hashValue(op.Payload))
		return tx.Do(ctx, "PEXPIRE", op.Key, op.TTL)
	case history.Expire:
		return tx.Do(ctx, "PEXPIRE", op.Key, op.TTL)
	case history.Del:
		return tx.Do(ctx, "DEL", op.Key)
	case history.Cancel:
		return tx.Do(ctx, "FCALL", "timer_cancel", 1, op.Key)
	default:
		args := []any{"FCALL", "timer_set", 1, op.Key, op.Payload, "PX", op.TTL}
		if op.At != 0 {
			args[5], args[6] = "PXAT", op.At
		}
		if op.Attempt > 1 && !countsItself(op.Payload) {
			args = append(args, "ATTEMPT", op.Attempt)
		}
		return tx.Do(ctx, args...)
	}
}
