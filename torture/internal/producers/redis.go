package producers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/torture/internal/history"
)

// replicaWait is an operation's wait for a replica. Without a replica a failover may lose the acknowledged write, so
// the outcome is unknown.
const replicaWait = 500 * time.Millisecond

// on makes an operation on Redis and returns it with its outcome.
func (p *Producers) on(ctx context.Context, op history.Op) history.Op {
	ops := []history.Op{op}
	p.onAll(ctx, ops)
	return ops[0]
}

// onAll makes operations in one transaction, on keys of one slot, and records each outcome. It reads the clock of Redis
// before and after them, in the same transaction.
func (p *Producers) onAll(ctx context.Context, ops []history.Op) {
	invoked := time.Now().UnixMilli()
	errs := p.transact(ctx, ops)
	ended := time.Now().UnixMilli() + 1
	for i := range ops {
		op := &ops[i]
		op.Invoked, op.Ended, op.Outcome = invoked, ended, outcome(errs[i])
		if errs[i] != nil {
			op.Error = errs[i].Error()
		}
		p.History.Write(history.Record{Op: op})
	}
	if errors.Join(errs...) != nil {
		p.Redis.Refresh(ctx)
	}
}

// outcome returns the outcome of an operation, from its error.
func outcome(err error) history.Outcome {
	var refused redis.Error
	var dial *net.OpError
	switch {
	case err == nil:
		return history.OK
	case errors.Is(err, errNotReplicated):
		return history.Unknown
	case errors.As(err, &refused), errors.As(err, &dial) && dial.Op == "dial":
		return history.Failed
	}
	return history.Unknown
}

// errNotReplicated means that no replica is known to have a write.
var errNotReplicated = errors.New("no replica has the write")

// transact makes operations in one transaction, and returns the error of each.
func (p *Producers) transact(ctx context.Context, ops []history.Op) []error {
	errs := make([]error, len(ops))
	fail := func(err error) []error {
		for i := range errs {
			errs[i] = cmp.Or(errs[i], err)
		}
		return errs
	}
	node, err := p.Redis.Node(ctx, ops[0].Key)
	if err != nil {
		return fail(fmt.Errorf("%w: %w", &net.OpError{Op: "dial", Err: err}, err)) // no server got the command
	}
	conn := node.Conn()
	defer func() { _ = conn.Close() }()
	var before, after *redis.TimeCmd
	replies, expires := make([]*redis.Cmd, len(ops)), make([]*redis.DurationCmd, len(ops))
	_, err = conn.TxPipelined(ctx, func(tx redis.Pipeliner) error {
		before = tx.Time(ctx)
		for i, op := range ops {
			replies[i] = command(ctx, tx, op)
			key := op.Key
			if op.Kind == history.SetGuard {
				key = history.GuardKey(key)
			}
			expires[i] = tx.PExpireTime(ctx, key)
		}
		after = tx.Time(ctx)
		return nil
	})
	if after.Err() != nil {
		return fail(err)
	}
	for i := range ops {
		ops[i].Before, ops[i].After = before.Val().UnixMilli(), after.Val().UnixMilli()
		errs[i] = read(&ops[i], replies[i], expires[i])
	}
	return fail(p.replicate(ctx, conn))
}

// read stores the reply of an operation in the operation.
func read(op *history.Op, reply *redis.Cmd, expires *redis.DurationCmd) error {
	value, err := reply.Result()
	if err != nil {
		return err
	}
	op.Reply = fmt.Sprint(value)
	switch op.Kind {
	case history.Timer, history.Repeat:
		if op.Due, err = strconv.ParseInt(op.Reply, 10, 64); err != nil {
			return fmt.Errorf("%s answered %q: %w", op.Kind, op.Reply, err)
		}
	case history.Set, history.Hash, history.Expire, history.SetGuard:
		if at := expires.Val(); at > 0 {
			op.Due = at.Milliseconds()
		}
	}
	return nil
}

// replicate waits until a replica has the writes of a connection.
func (p *Producers) replicate(ctx context.Context, conn *redis.Conn) error {
	if !p.Replicated {
		return nil
	}
	switch have, err := conn.Do(ctx, "WAIT", 1, replicaWait.Milliseconds()).Int(); {
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
		return tx.Do(ctx, "SET", op.Key, cmp.Or(op.Payload, op.Body), "PX", op.TTL)
	case history.Hash:
		tx.Del(ctx, op.Key)
		tx.HSet(ctx, op.Key, fieldsOf(op)...)
		return tx.Do(ctx, "PEXPIRE", op.Key, op.TTL)
	case history.Expire:
		return tx.Do(ctx, "PEXPIRE", op.Key, op.TTL)
	case history.Del:
		return tx.Do(ctx, "DEL", op.Key)
	case history.Cancel:
		return tx.Do(ctx, "FCALL", "timer_cancel", 1, op.Key)
	case history.Repeat:
		args := []any{"FCALL", "timer_repeat", 1, op.Key, op.Payload, "EVERY", op.Every, "FROM", op.At, "UNTIL",
			op.Until}
		if op.CatchUp {
			args = append(args, "CATCHUP", time.Hour.Milliseconds())
		}
		return tx.Do(ctx, guarded(args, op)...)
	case history.SetGuard:
		args := []any{"SET", history.GuardKey(op.Key), "yes"}
		if op.TTL != 0 {
			args = append(args, "PX", op.TTL)
		}
		return tx.Do(ctx, args...)
	case history.DelGuard:
		return tx.Do(ctx, "DEL", history.GuardKey(op.Key))
	default:
		args := []any{"FCALL", "timer_set", 1, op.Key, cmp.Or(op.Payload, op.Body), "PX", op.TTL}
		if op.At != 0 {
			args[5], args[6] = "PXAT", op.At
		}
		if op.Attempt > 1 && !countsItself(op.Payload) {
			args = append(args, "ATTEMPT", op.Attempt)
		}
		if op.Own {
			args = append(args, "LATE", op.Late)
			if op.Drop {
				args = append(args, "DROP")
			}
		}
		return tx.Do(ctx, guarded(args, op)...)
	}
}

// guarded returns the arguments of a call with the timer's own guard.
func guarded(args []any, op history.Op) []any {
	if !op.OwnGuard {
		return args
	}
	return append(args, op.Guard, history.GuardKey(op.Key))
}
