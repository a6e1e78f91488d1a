// Package producers sets, changes, cancels and retries timers as the users of timerd do, and records the known outcome
// of each operation.
package producers

import (
	"context"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/torture/internal/history"
)

// The modules of keys. Timers of the second module have two attempts, others one more than there are delays. The last
// two modules have limits on lateness.
const (
	moduleRun      = "run"
	moduleBrief    = "brief"
	modulePrompt   = "prompt"
	moduleFleeting = "fleeting" // late timers are dropped
	moduleCall     = "call"     // of webhooks that are tried many times
)

// limit is the limit on lateness of the modules that have one, for timers without their own.
const limit = 2500 * time.Millisecond

// Limits returns the TIMERD_LATE that the producers expect.
func Limits() string {
	return "*:" + modulePrompt + "=" + limit.String() + "; *:" + moduleFleeting + "=" + limit.String() + " drop"
}

// delays are the delays of most keys' policy.
func delays() []time.Duration {
	return []time.Duration{300 * time.Millisecond, 700 * time.Millisecond, 1500 * time.Millisecond, 3 * time.Second}
}

// Policies returns the TIMERD_RETRY that the producers expect.
func Policies() string {
	var all []string
	for _, d := range delays() {
		all = append(all, d.String())
	}
	usual := strings.Join(all, ",")
	return "*:" + moduleBrief + ":*=300ms; " + history.HookApp + "=" + usual + strings.Repeat(",3s", webhookRetries) +
		"; *=" + usual
}

// webhookRetries is the number of further delays for webhooks, except the ones with two attempts.
const webhookRetries = 4

// Redis is a deployment of Redis, as far as the producers need it.
type Redis interface {
	Node(ctx context.Context, key string) (*redis.Client, error)
	Refresh(ctx context.Context)
}

// Producers runs lives: each is a short tale of operations on a key of its own, one after the other. Run and Crowd may
// be called at the same time.
type Producers struct {
	Redis      Redis
	Replicated bool // an operation has worked once a replica has it
	NATSURL    string
	Hooks      []string // URLs of the receivers of webhooks; repeated ones get more calls
	History    *history.Writer
	Seed       uint64
	Rate       float64       // lives begun per second
	MaxDelay   time.Duration // of a timer

	inbox  *inbox
	others atomic.Int64 // lives begun by Crowd
}

// Open connects to NATS. Call it before Run and Crowd. The caller closes the Producers after these have returned.
func (p *Producers) Open(ctx context.Context) (err error) {
	p.inbox, err = openInbox(ctx, p.NATSURL)
	return err
}

// Close ends the connection to NATS.
func (p *Producers) Close() { p.inbox.close() }

// Run begins lives until ctx ends, and returns once they are all over, which takes some
// times MaxDelay.
func (p *Producers) Run(ctx context.Context) {
	var lives sync.WaitGroup
	defer lives.Wait()
	next := time.NewTicker(time.Duration(float64(time.Second) / p.Rate))
	defer next.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-next.C:
		}
		lives.Go(func() { p.live(context.WithoutCancel(ctx), n) })
	}
}

// live runs the nth life. The seed decides its operations.
func (p *Producers) live(ctx context.Context, n int) {
	l := p.life(ctx, n)
	tales := l.tales()
	total := 0
	for _, t := range tales {
		total += t.weight
	}
	pick := l.random.IntN(total)
	for _, t := range tales {
		if pick -= t.weight; pick < 0 {
			l.name(t)
			t.tell()
			return
		}
	}
}

// life returns the nth life, without a key.
func (p *Producers) life(ctx context.Context, n int) *life {
	return &life{Producers: p, ctx: ctx, random: rand.New(rand.NewPCG(p.Seed, uint64(n)+1)), n: n}
}

// asking is the kind of a retry request.
type asking int

const (
	policy    asking = iota // with the delay of the policy
	delayed                 // with its own delay
	postponed               // with its own delay, and the same attempt
)

// retry publishes a retry request until it is acknowledged, and reports whether it was. A request that is published
// repeatedly is still one operation: timerd promises that.
func (p *Producers) retry(ctx context.Context, e received, delay time.Duration, by asking) bool {
	op := history.Op{
		Key: e.Key.String(), Kind: history.Retry, Payload: string(e.Data), Attempt: e.Attempt, Max: e.MaxAttempts,
		TTL: delay.Milliseconds(), EventID: e.ID, Origin: e.FirstID(), Postponed: by == postponed, Status: e.Status,
		Due: e.Due.UnixMilli(), Outcome: history.Unknown,
		Invoked: time.Now().UnixMilli(),
	}
	tries := retryTries
	if len(e.Data) > maxPayload {
		op.Refused, tries = true, 1 // each request has a dead letter of its own
	}
	msg := &nats.Msg{Subject: e.Key.Subject("timers", keys.Retry), Data: e.data, Header: nats.Header{}}
	if by != policy {
		msg.Header.Set(event.DelayHeader, delay.String())
	}
	if by == postponed {
		msg.Header.Set(event.PostponeHeader, event.Postponed)
	}
	for range tries {
		attempt, cancel := context.WithTimeout(ctx, retryPatience)
		_, err := p.inbox.js.PublishMsg(attempt, msg)
		cancel()
		if err == nil {
			op.Outcome, op.Error = history.OK, ""
			break
		}
		op.Error = err.Error()
		pause(retryPause)
	}
	op.Ended = time.Now().UnixMilli() + 1
	p.History.Write(history.Record{Op: &op})
	return op.Outcome == history.OK
}

const (
	retryTries    = 60
	retryPatience = 2 * time.Second
	retryPause    = 200 * time.Millisecond
)

func pause(d time.Duration) { <-time.After(d) }
