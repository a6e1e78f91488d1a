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
	// crowdDelay is the time until a crowd is due.
	crowdDelay = 1500 * time.Millisecond
	// batch is the number of timers set in one transaction.
	batch = 50
	// exhausted is the number of events without attempts left in a crowd: more than timerd has in hand at a time.
	exhausted = 200
	// workers is the number of lives of a crowd that run at a time.
	workers = 8
	// crowdRepetitions is the number of repetitions of each timer that Repeat sets. They go on while a master is slow
	// or silent.
	crowdRepetitions = 7
	// firstOther is the first number of the lives of crowds. All other lives have lower numbers.
	firstOther = 1_000_000_000
)

// Crowd sets many more timers of an app than usual, as far as possible for the same moment, and returns once they are
// set. For DeadApp it requests retries without attempts left, for the app with giants it sets giants, and for other
// apps a multiple of all timers set in a second. For webhooks it also waits until the timers are due. The results are
// in the history.
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

// other returns a life that Run does not begin.
func (p *Producers) other(ctx context.Context, t tale) *life {
	l := p.life(ctx, firstOther+int(p.others.Add(1)))
	l.name(t)
	return l
}

// flood sets n timers that are due in the same ms. Until then it repeats calls that Redis refuses, for example while
// the library is missing for a moment.
func (p *Producers) flood(ctx context.Context, app string, n int) time.Time {
	due := time.Now().Add(crowdDelay).UnixMilli()
	crowd := firstOther + int(p.others.Add(1))
	for first := 0; first < n; first += batch {
		asked := make([]history.Op, min(batch, n-first))
		for i := range asked {
			// In a cluster the timers of one transaction are in one slot.
			id := fmt.Sprintf("{%d-%d}-%d", crowd, first/batch, i)
			asked[i] = history.Op{Key: app + ":" + moduleRun + ":crowd:" + id, Kind: history.Timer, Payload: id,
				Attempt: 1, At: due}
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

// exhaust requests retries of events whose attempts are used up. Each request becomes a dead letter.
func (p *Producers) exhaust(ctx context.Context) {
	const attempts = 2 // of the module
	p.each(ctx, exhausted, tale{name: "crowd", app: history.DyingApp, module: moduleBrief}, func(l *life) {
		l.retry(ctx, l.event(attempts, attempts), 0, policy)
	})
}

// Repeat sets twice as many repeating timers as lives begin in a second, and returns once they are set. They catch up
// on missed occurrences. In a cluster each master has some of them.
func (p *Producers) Repeat(ctx context.Context) {
	p.each(ctx, int(2*p.Rate), tale{name: "repeating", app: history.MainApp, module: moduleRun}, func(l *life) {
		l.repeat(l.between(500, 1000), l.between(300, 1000), true, crowdRepetitions)
	})
}

// Retry requests retries of as many events, each with a key of its own, and returns once all requests are made. It
// needs no Redis.
func (p *Producers) Retry(ctx context.Context) {
	p.each(ctx, int(2*p.Rate), tale{name: "retrying", app: history.MainApp, module: moduleRun}, func(l *life) {
		l.retry(ctx, l.event(1, len(delays())+1), l.between(0, 1500), delayed)
	})
}

// each runs n lives of a crowd, some at a time, and returns once all are over.
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

// event returns an event of the life's key that is due now, as timerd would have published it.
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
