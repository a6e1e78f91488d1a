package streams

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/backoff"
	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/keys"
)

const (
	// countInterval is the interval of the counts that reveal lost timers.
	countInterval = 2 * time.Second
	// lostCounts is the number of counts that Redis may lose without being reported: a crash, or a failover, costs the
	// last second or two.
	lostCounts = 2
	// sameLoss is the time within which several timerds notice the same loss.
	sameLoss = 10 * time.Second
	// lossesTimeout bounds the read of the losses. NATS never answers a user without the right to read them.
	lossesTimeout = 2 * time.Second
)

// Loss is data that a server has lost. It is reported until an operator acknowledges it.
type Loss struct {
	// Stream was deleted, or replaced by an older one; "": a Redis server was flushed, or replaced by an older copy.
	Stream  string    `json:"stream,omitempty"`
	Server  string    `json:"server,omitempty"` // of Redis; "" if it is the only one
	At      time.Time `json:"at"`               // when it was noticed
	Counted time.Time `json:"counted"`          // the time of the last count
	Had     int64     `json:"had"`              // timers, or events, by that count
	// Vanished is the number of timers that vanished from the schedule of a server that has its other data. Those whose
	// other half was left were put back.
	Vanished int64 `json:"vanished,omitempty"`
}

// Finding returns the report of the loss. now is the server's present number of timers, negative if unknown.
func (l Loss) Finding(now int64) diag.Finding {
	f := diag.Finding{Level: diag.Fail, Check: diag.CheckLosses}
	at, counted := l.At.UTC().Format(time.RFC3339), l.Counted.UTC().Format(time.RFC3339)
	const acknowledge = "; then: timerd status --acknowledge"
	if l.Stream != "" {
		f.Text = fmt.Sprintf(
			"the stream %s was deleted, or is an older one, as was noticed at %s; it had %d events at the last "+
				"count, at %s, which consumers may not all have got, and its consumers went with it", l.Stream, at,
			l.Had,
			counted)
		f.Fix = "restart the programs of its consumers, or create the consumers again (that of timerd deliver comes " +
			"back by itself), and make up for missed events from your own records" + acknowledge
		return f
	}
	server := "Redis"
	if l.Server != "" {
		server += " at " + l.Server
	}
	if l.Vanished > 0 {
		f.Text = fmt.Sprintf(
			"%d timers had vanished from the schedule of %s, as was noticed at %s: somebody has deleted keys "+
				"timerd:… or members of them; they were put back, but some may have lost their payloads or fired at "+
				"another time", l.Vanished, server, at)
		f.Fix = "allow only timerd to write keys timerd:… (deploy/users.acl), and see timerd's log for how many were " +
			"put back (docs/runbook.md#data-was-lost)" + acknowledge
		return f
	}
	f.Text = fmt.Sprintf(
		"%s has lost its data, flushed or replaced by an older copy, as was noticed at %s; it had %d timers at the "+
			"last count, at %s", server, at, l.Had, counted)
	if now >= 0 {
		f.Text += fmt.Sprintf(", and has %d now", now)
	}
	f.Fix = "set the missing timers again (docs/runbook.md#data-was-lost)" + acknowledge
	return f
}

// Count is a Redis server's count, kept both there and in NATS: if one of them loses it, the other reveals that.
type count struct {
	N      int64     `json:"n"` // the number of the count, from 1
	At     time.Time `json:"at"`
	Timers int64     `json:"timers"` // in any state
	// The stream of firings at the time of the count.
	Created time.Time `json:"created,omitzero"`
	Last    uint64    `json:"last"`
	Events  uint64    `json:"events"`
}

// Counted is a Redis server with its number of timers.
type Counted struct {
	Server string // "" if it is the only one
	Key    string // the key of its count, in one of its slots
	Timers int64  // negative if unknown yet

	Vanished int64 // timers that vanished from the schedule lately; the recoverable ones were put back
}

// Losses notices lost data. For each Redis server it keeps a growing number there and in NATS, with the number of
// timers. If Redis has no number or an older one, it was flushed, or replaced by an older copy. If Redis has a newer
// one than NATS, or the stream of firings is another one, NATS has lost data.
type Losses struct {
	site    site
	streams Config
	servers func() []Counted
	log     *slog.Logger
	known   map[string]count // by key; for run's goroutine
	told    map[string]int64 // by key: the vanished timers of the last report; for run's goroutine
}

// NewLosses returns Losses for the servers that a function returns at each count.
func NewLosses(rdb redis.UniversalClient, js jetstream.JetStream, streams Config, servers func() []Counted,
	log *slog.Logger) *Losses {
	return &Losses{site: site{rdb, js, streams.Names}, streams: streams, servers: servers, log: log,
		known: map[string]count{}, told: map[string]int64{}}
}

// Run counts at each countInterval until ctx ends.
func (l *Losses) Run(ctx context.Context) {
	pace := backoff.Backoff{Policy: backoff.Policy{First: countInterval, Longest: time.Minute}, Logger: l.log}
	for {
		within, cancel := context.WithTimeout(ctx, 2*callTimeout)
		err := l.look(within)
		cancel()
		pause := countInterval
		switch {
		case err != nil && l.site.js.Conn().IsConnected():
			failed := "the timers are not counted, so a loss of timers would go unnoticed"
			if _, answered := errors.AsType[*jetstream.APIError](err); !answered &&
				!errors.Is(err, nats.ErrNoResponders) {
				failed += "; unless JetStream is down, the NATS user needs the right to publish to " +
					l.site.names.SubjectAll(keys.State)
			}
			pause = pace.Fail(failed, Explained(ctx, l.site.js, err))
		default:
			pace.Succeed()
		}
		if !backoff.Sleep(ctx, pause) {
			return
		}
	}
}

// look counts once. It leaves out servers that are away. Its error is the reason why NATS did not store the counts.
func (l *Losses) look(ctx context.Context) error {
	if !l.site.js.Conn().IsConnected() {
		return nil // a loss must be reported
	}
	stored, err := ReadState[map[string]count](ctx, l.site.js, l.streams, stateCounts)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		if err := l.streams.create(ctx, l.site.js, l.streams.state()); err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	if stored == nil {
		stored = map[string]count{}
	}
	fired := l.fired(ctx)
	if fired == nil {
		return nil
	}
	var losses []Loss
	var all []counting
	servers := l.servers()
	for _, server := range servers {
		if server.Vanished > l.told[server.Key] {
			now := time.Now().UTC().Truncate(time.Millisecond)
			losses = append(losses, Loss{Server: server.Server, At: now, Counted: now, Vanished: server.Vanished})
		}
		c, lost, err := l.lookAt(ctx, server, newer(l.known[server.Key], stored[server.Key]), fired)
		if err != nil {
			l.log.Debug("cannot count the timers", "redis", server.Server, "err", err)
			continue
		}
		all, losses = append(all, c), append(losses, lost...)
	}
	// The new count hides the loss, so it is stored only after the report: if timerd dies in between, the next look
	// notices the loss again.
	if err := l.tell(ctx, losses); err != nil {
		return err
	}
	for _, server := range servers {
		l.told[server.Key] = server.Vanished
	}
	return l.keep(ctx, all, stored)
}

// fired returns the stream of firings, or nil if it is missing or NATS does not answer, which other checks report.
func (l *Losses) fired(ctx context.Context) *jetstream.StreamInfo {
	info, err := streamInfo(ctx, l.site.js, l.streams.FiredStream())
	if err != nil {
		l.log.Debug("cannot count the timers", "source", l.streams.FiredStream(), "err", err)
		return nil
	}
	return info
}

// counting is a server's count to be stored.
type counting struct {
	server Counted
	is     count
	mode   string // of SET; "" if another timerd has stored it
}

// lookAt compares a server's own count with the count stored in NATS, and counts unless another timerd does. It returns
// the losses, and changes nothing.
func (l *Losses) lookAt(ctx context.Context, server Counted, before count,
	fired *jetstream.StreamInfo) (c counting, lost []Loss, err error) {
	var is count
	text, err := l.site.rdb.Get(ctx, server.Key).Result()
	there := err == nil && json.Unmarshal([]byte(text), &is) == nil
	if err != nil && !errors.Is(err, redis.Nil) {
		return counting{}, nil, err
	}
	now := time.Now().UTC().Truncate(time.Millisecond)
	if older := is.N < before.N-lostCounts; older || !there {
		if before.Timers > 0 {
			lost = append(lost, Loss{Server: server.Server, At: now, Counted: before.At, Had: before.Timers})
		}
	} else if is.N > l.known[server.Key].N && l.known[server.Key].N > 0 {
		return counting{server: server, is: is}, nil, nil // another timerd has counted
	}
	before = newer(before, is)
	if created := fired.Created.UTC(); before.Events > 0 && (!created.Equal(before.Created) ||
		fired.State.LastSeq < before.Last) {
		lost = append(lost, Loss{Stream: fired.Config.Name, At: now, Counted: before.At, Had: int64(before.Events)})
	}
	next := count{N: before.N + 1, At: now, Timers: server.Timers, Created: fired.Created.UTC(),
		Last: fired.State.LastSeq, Events: fired.State.Msgs}
	if server.Timers < 0 {
		next.Timers = before.Timers
	}
	mode := "XX" // so that the next look sees a flush that happens now
	if !there {
		mode = "NX"
	}
	return counting{server, next, mode}, lost, nil
}

// keep stores counts in their servers, and then all known ones in NATS, which has stored.
func (l *Losses) keep(ctx context.Context, all []counting, stored map[string]count) error {
	news := false
	for _, c := range all {
		if c.mode != "" {
			text, err := json.Marshal(c.is)
			if err == nil {
				err = l.site.rdb.SetArgs(ctx, c.server.Key, text, redis.SetArgs{Mode: c.mode}).Err()
			}
			if err != nil {
				l.log.Debug("cannot count the timers", "redis", c.server.Server, "err", err)
				continue
			}
		}
		news = news || c.is.N != stored[c.server.Key].N
		l.known[c.server.Key], stored[c.server.Key] = c.is, c.is
	}
	if !news {
		return nil
	}
	text, err := json.Marshal(stored)
	if err == nil {
		_, err = l.site.js.Publish(ctx, l.streams.keptSubject(stateCounts), text)
	}
	return err
}

// newer returns the newer of two counts.
func newer(a, b count) count {
	if b.N > a.N {
		return b
	}
	return a
}

// tell stores losses in NATS.
func (l *Losses) tell(ctx context.Context, losses []Loss) error {
	if len(losses) == 0 {
		return nil
	}
	return ChangeState(ctx, l.site.js, l.streams, stateLosses, func(told *[]Loss) bool {
		before := len(*told)
		for _, loss := range losses {
			isSame := func(o Loss) bool {
				return o.Stream == loss.Stream && o.Server == loss.Server && (o.Vanished > 0) == (loss.Vanished > 0) &&
					(o.Counted.Equal(loss.Counted) || loss.At.Sub(o.At).Abs() < sameLoss)
			}
			if !slices.ContainsFunc(*told, isSame) {
				*told = append(*told, loss)
				l.log.Error("data was lost", "err", loss.Finding(-1).Text)
			}
		}
		return len(*told) > before
	})
}

// ReadLosses returns the losses that nobody has acknowledged, oldest first.
func ReadLosses(ctx context.Context, js jetstream.JetStream, s Config) ([]Loss, error) {
	ctx, cancel := context.WithTimeout(ctx, lossesTimeout)
	defer cancel()
	told, err := ReadState[[]Loss](ctx, js, s, stateLosses)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, nil
	}
	return told, err
}

// AcknowledgeLosses stops reporting the losses known by now, and returns them.
func AcknowledgeLosses(ctx context.Context, js jetstream.JetStream, s Config) (were []Loss, err error) {
	err = ChangeState(ctx, js, s, stateLosses, func(told *[]Loss) bool {
		were, *told = *told, nil
		return len(were) > 0
	})
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		err = nil
	}
	return were, err
}
