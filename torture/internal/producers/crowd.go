package producers

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/torture/internal/history"
)

const (
	// crowdDelay is after what time a crowd is due.
	crowdDelay = 1500 * time.Millisecond
	// batch is how many timers are set in one transaction.
	batch = 50
	// exhausted is how many events of a crowd have their attempts used up: more than timerd has in hand at a time.
	exhausted = 200
	// workers is how many lives of a crowd are told at a time.
	workers = 8
	// persists is how often those of Repeat are due after the first time: for as long as a master is slow or silent.
	persists = 7
	// firstOther numbers the lives of crowds, apart from all others.
	firstOther = 1_000_000_000
)

// Crowd has an app set more timers than its due, for the same moment as far as that goes, and returns once it has: of the
// app that dies, requests for a retry of what has no attempts left; of that with giants, giants; of others a multiple of
// all that is set in a second. It waits until those of webhooks are due. What became of each is in the history.
func (p *Producers) Crowd(ctx context.Context, app string) {
	switch app {
	case history.DyingApp:
		p.exhaust(ctx)
	case history.GiantApp:
		p.giants(ctx)
	case history.FloodApp:
		p.flood(ctx, app, int(20*p.Rate))
	case history.HookApp:
		due := p.flood(ctx, app, int(4*p.Rate))
		pause(time.Until(due))
	default:
		p.flood(ctx, app, int(10*p.Rate))
	}
}

// other returns a life that no Run begins.
func (p *Producers) other(ctx context.Context, t tale) *life {
	l := p.life(ctx, firstOther+int(p.others.Add(1)))
	l.name(t)
	return l
}

// flood sets n timers that are due in the same ms. What Redis refuses, as when the library is gone for a moment, is asked
// for again until then.
func (p *Producers) flood(ctx context.Context, app string, n int) time.Time {
	due := time.Now().Add(crowdDelay).UnixMilli()
	crowd := firstOther + int(p.others.Add(1))
	for first := 0; first < n; first += batch {
		asked := make([]history.Op, min(batch, n-first))
		for i := range asked {
			// In a cluster those of one transaction are in one slot.
			id := fmt.Sprintf("{%d-%d}-%d", crowd, first/batch, i)
			asked[i] = history.Op{Key: app + ":" + moduleRun + ":crowd:" + id, Kind: history.Timer, Payload: id, Attempt: 1, At: due}
			if app == history.HookApp {
				asked[i].Key, asked[i].Payload = app+":"+moduleCall+":crowd:"+id, p.hook(id, i)
			}
		}
		for time.Now().UnixMilli() < due {
			ops := slices.Clone(asked)
			p.onAll(ctx, ops)
			if ops[0].Outcome != history.Failed {
				break
			}
			pause(retryPause)
		}
	}
	return time.UnixMilli(due)
}

// giants sets some giants of each kind.
func (p *Producers) giants(ctx context.Context) {
	t := tale{name: "giants", app: history.GiantApp, module: moduleRun}
	for range max(int(p.Rate), 8) / 4 {
		p.other(ctx, t).manyFields()
		p.other(ctx, t).tooLarge(history.Set)
		l := p.other(ctx, t)
		l.setTo(history.Timer, crowdDelay, padded(l.n, maxPayload), 1)
	}
}

// exhaust asks for retries of events whose attempts are used up. Each is a dead letter.
func (p *Producers) exhaust(ctx context.Context) {
	const attempts = 2 // of the module
	p.each(ctx, exhausted, tale{name: "crowd", app: history.DyingApp, module: moduleBrief}, func(l *life) {
		l.retry(ctx, l.event(attempts, attempts), 0, policy)
	})
}

// Repeat sets twice as many timers that repeat as lives begin in a second, and returns once it has. What is missed is made up for. In
// a cluster each master has some of them.
func (p *Producers) Repeat(ctx context.Context) {
	p.each(ctx, int(2*p.Rate), tale{name: "repeating", app: history.MainApp, module: moduleRun}, func(l *life) {
		l.repeat(l.between(500, 1000), l.between(300, 1000), true, persists)
	})
}

// Retry asks for a retry of as many events, of keys of their own, and returns once it has. It needs no Redis.
func (p *Producers) Retry(ctx context.Context) {
	p.each(ctx, int(2*p.Rate), tale{name: "retrying", app: history.MainApp, module: moduleRun}, func(l *life) {
		l.retry(ctx, l.event(1, len(delays())+1), l.between(0, 1500), delayed)
	})
}

// each tells n lives of a crowd, some at a time, and returns once they are all over.
func (p *Producers) each(ctx context.Context, n int, t tale, tell func(*life)) {
	lives := make(chan *life)
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for l := range lives {
				tell(l)
			}
		})
	}
	for range n {
		lives <- p.other(ctx, t)
	}
	close(lives)
	all.Wait()
}

// event returns one of the life's key that is due now, as timerd would have published it.
func (l *life) event(attempt, attempts int) received {
	key, err := keys.Parse(l.key)
	if err != nil {
		panic(err) // it is made here
	}
	due := time.Now().Truncate(time.Millisecond)
	e := event.Event{
		ID: keys.EventID(l.key, due.UnixMilli(), attempt), Type: event.TypeFired, Key: key, Time: due, Due: due,
		Attempt: attempt, MaxAttempts: attempts, Trigger: "deadline", Data: []byte(strconv.Itoa(l.n)),
	}
	return received{e, e.AppendJSON(nil)}
}
