package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/client"
)

// namespace is the timers' namespace: bank:settle:daily:<branch> and bank:statement:monthly:<branch>.
const namespace = "bank"

// The due times, by the clock of each branch: half past two each night, and the last minute of the last day of the
// month. repeats.yaml has the same. On the night without half past two, because the clock is put forward, it is three.
const (
	nightly   = "30 2 * * *"
	monthEnds = "59 23 L * *"
)

// branch is a branch of the bank, with its time zone.
type branch struct{ name, zone string }

func branches() []branch {
	return []branch{{"berlin", "Europe/Berlin"}, {"newyork", "America/New_York"}, {"kathmandu", "Asia/Kathmandu"}}
}

func (b branch) settleKey() string    { return "bank:settle:daily:" + b.name }
func (b branch) statementKey() string { return "bank:statement:monthly:" + b.name }

// None of these keys is a timer's: that would have four parts. They are hashes by day or by month, as the clock of the
// branch has it.
func (b branch) takings() string    { return "takings/" + b.name }
func (b branch) settled() string    { return "settled/" + b.name }
func (b branch) statements() string { return "statements/" + b.name }

// local returns a time by the clock of the branch.
func (b branch) local(t time.Time) (time.Time, error) {
	zone, err := time.LoadLocation(b.zone)
	if err != nil {
		return t, err
	}
	return t.In(zone), nil
}

// bank settles its branches' takings. Its methods may be called concurrently, from any number of processes.
type bank struct {
	rdb    redis.UniversalClient
	timers *client.Timers

	// pay moves money. Called again with the same id, it does nothing.
	pay func(ctx context.Context, id string, cents int64) error
}

// repeat sets the timers of all branches. Existing ones stay as they are, so each process may call it at its start.
// With a file of repetitions, `timerd repeat apply -f repeats.yaml` does the same.
func (b *bank) repeat(ctx context.Context) error {
	for _, br := range branches() {
		for key, expression := range map[string]string{br.settleKey(): nightly, br.statementKey(): monthEnds} {
			_, err := b.timers.Repeat(ctx, key, []byte(br.zone), client.Cron(expression, br.zone), client.NX())
			if err != nil && !errors.Is(err, client.ErrNotSet) {
				return err
			}
		}
	}
	return nil
}

// book adds to a branch's takings of a day.
func (b *bank) book(ctx context.Context, br branch, at time.Time, cents int64) error {
	local, err := br.local(at)
	if err != nil {
		return err
	}
	return b.rdb.HIncrBy(ctx, br.takings(), local.Format(time.DateOnly), cents).Err()
}

// handle is the client.Handler.
func (b *bank) handle(ctx context.Context, e client.Event) error {
	for _, br := range branches() {
		switch e.Key.String() {
		case br.settleKey():
			return b.settle(ctx, br, e.Due)
		case br.statementKey():
			return b.state(ctx, br, e.Due)
		}
	}
	return client.Dead(fmt.Errorf("no branch has the timer %s", e.Key))
}

// settle pays out a branch's takings of each day before the day of a due time, and none twice. So an event may come
// twice, late, or after midnight as a retry with a due time of its own; and the next occurrence makes up for one that
// was skipped in an outage.
func (b *bank) settle(ctx context.Context, br branch, due time.Time) error {
	local, err := br.local(due)
	if err != nil {
		return err
	}
	today := local.Format(time.DateOnly)
	takings, err := b.rdb.HGetAll(ctx, br.takings()).Result()
	if err != nil {
		return err
	}
	for day, text := range takings {
		if day >= today {
			continue
		}
		switch done, err := b.rdb.HExists(ctx, br.settled(), day).Result(); {
		case err != nil:
			return err
		case done:
			continue
		}
		cents, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return client.Dead(fmt.Errorf("%s of %s: %w", day, br.name, err))
		}
		if err := b.pay(ctx, br.name+"/"+day, cents); err != nil {
			return err // asks for a retry, which waits beside the next occurrence
		}
		if err := b.rdb.HSet(ctx, br.settled(), day, cents).Err(); err != nil {
			return err
		}
	}
	return nil
}

// state writes a branch's statements of all months up to that of a due time. Those of earlier months stay as they were.
func (b *bank) state(ctx context.Context, br branch, due time.Time) error {
	local, err := br.local(due)
	if err != nil {
		return err
	}
	today := local.Format(time.DateOnly)
	takings, err := b.rdb.HGetAll(ctx, br.takings()).Result()
	if err != nil {
		return err
	}
	sums := map[string]int64{}
	for day, text := range takings {
		cents, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return client.Dead(fmt.Errorf("%s of %s: %w", day, br.name, err))
		}
		if day <= today {
			sums[day[:len("2006-01")]] += cents
		}
	}
	for month, cents := range sums {
		if err := b.rdb.HSet(ctx, br.statements(), month, amount(cents)).Err(); err != nil {
			return err
		}
	}
	return nil
}

// amount writes cents.
func amount(cents int64) string { return fmt.Sprintf("%d.%02d", cents/100, cents%100) }
