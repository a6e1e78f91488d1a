package status

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/history"
	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/keys"
)

const (
	// webhooksTimeout bounds NATS's answers about webhooks, so that they do not delay the rest.
	webhooksTimeout = 2 * time.Second
	// waitsTooLong is the time after which an event's wait for a call, or for a process, is a problem: with room for
	// more calls the wait is milliseconds.
	waitsTooLong = time.Minute
	// idleTooLong is the time after which unread events of another program's consumer are a problem: until then the
	// program may start again.
	idleTooLong = 30 * time.Second
	// asksSoon is the time within which a process asks for events after its start or a lost connection.
	asksSoon = 10 * time.Second
	// agesAsked limits the filters for which NATS is asked for the age of the oldest waiting event; the consumers with
	// the most events come first.
	agesAsked = 20
)

// Webhooks is the state of timerd deliver, and of the other consumers of fired events, as NATS reports it.
type Webhooks struct {
	Log       *jetstream.StreamInfo // the stream of deliveries
	Consumers []Consumer            // of timerd deliver, by name
	All       []Consumer            // of timerd deliver and of other programs, by name
	Unnamed   []Failures
	Letters   []Letters

	lettersLeftOut int
	lettersErr     error                  // why Letters are unknown
	faults         []*streams.Fault       // of the log
	fired          jetstream.StreamConfig // of the stream of firings; the zero value if there is none
	others         []Consumer             // of other programs
}

// Consumer is a durable consumer through which a program gets fired events. timerd deliver has one per group, shared by
// all its processes.
type Consumer struct {
	Name    string `json:"name"`
	Waiting uint64 `json:"waiting"` // events not fetched by a process yet
	Working int    `json:"working"` // events fetched by a process, and not settled or given back
	// Oldest is the stored time of the first waiting event; left out if none waits, or if unknown.
	Oldest time.Time `json:"oldest,omitzero"`
	// Last is the time of the last fetch by a process; left out before the first.
	Last time.Time `json:"last,omitzero"`

	At time.Time `json:"at"` // the time of this state, by the clock of NATS

	// Redelivered is the number of events in work or given back that were delivered before.
	Redelivered int `json:"redelivered"`
	// Failed is the number of failed attempts in the last ten minutes, by the retry requests that named the consumer;
	// null if no timerd has reported any count.
	Failed *int64 `json:"failed"`
	// PerSecond is the number of events settled per second over the last ten minutes, or less if a timerd knows less;
	// null if none knows any. FailingShare is the share of failed attempts among them; null also if none was settled.
	PerSecond    *float64 `json:"persecond"`
	FailingShare *float64 `json:"failingshare"`
	// LastFailure is the last failed attempt within the last hour that named the consumer; left out without one.
	LastFailure *streams.LastFailure `json:"lastfailure,omitempty"`

	filters []string
	of      []string // the namespaces of its events; none for all
	next    uint64   // no event before this sequence can be waiting
	paused  bool
	asking  bool // a process asks for events

	settled  uint64                   // ended deliveries since its creation
	samples  []streams.ConsumerSample // of the last hour, oldest first
	failures streams.PerMinute        // of the last hour
}

// GatherWebhooks returns the state of webhooks, and of other consumers. If webhooks are not used, Log is nil.
func GatherWebhooks(ctx context.Context, js jetstream.JetStream, conf streams.Config) (*Webhooks, error) {
	ctx, cancel := context.WithTimeout(ctx, webhooksTimeout)
	defer cancel()
	log, faults, err := streams.CheckDelivery(ctx, js, conf)
	if err != nil {
		return nil, err
	}
	w := &Webhooks{Log: log, faults: faults}
	fired, err := js.Stream(ctx, conf.FiredStream())
	if errors.Is(err, jetstream.ErrStreamNotFound) { // other checks report it
		return w, nil
	}
	if err != nil {
		return nil, fmt.Errorf("stream %s: %w", conf.FiredStream(), err)
	}
	all, err := durableConsumers(ctx, fired, conf.Names)
	if err != nil {
		return nil, fmt.Errorf("consumers of stream %s: %w", conf.FiredStream(), err)
	}
	askAges(ctx, js, fired.CachedInfo(), all)
	past, err := streams.ReadConsumers(ctx, js, conf)
	if err != nil {
		past = nil // it needs no extra right, so other checks report errors
	}
	for i := range all {
		all[i].addPast(past)
	}
	w.All, w.Unnamed = all, unnamed(past, cmp.Or(fired.CachedInfo().TimeStamp, time.Now()))
	w.fired = fired.CachedInfo().Config
	for _, c := range all {
		if isOfDeliver(c.Name) && log != nil {
			w.Consumers = append(w.Consumers, c)
		} else if !isOfDeliver(c.Name) {
			w.others = append(w.others, c)
		}
	}
	return w, nil
}

// WebhookRights returns the fix if GatherWebhooks gets no answer.
func WebhookRights(names keys.Names) string {
	return fmt.Sprintf("look at the NATS server, and let the user call $JS.API.STREAM.INFO.%s and "+
		"$JS.API.CONSUMER.LIST.%s", names.DeliveryStream(), names.FiredStream())
}

// durableConsumers returns the pull consumers, by name.
func durableConsumers(ctx context.Context, fired jetstream.Stream, names keys.Names) (all []Consumer, err error) {
	list := fired.ListConsumers(ctx)
	for info := range list.Info() {
		if info.Config.Durable == "" || info.Config.DeliverSubject != "" {
			continue
		}
		c := Consumer{
			Name: info.Name, Waiting: info.NumPending, Working: info.NumAckPending, Redelivered: info.NumRedelivered,
			settled: max(info.Delivered.Consumer, uint64(info.NumAckPending)) - uint64(info.NumAckPending),
			filters: info.Config.FilterSubjects, next: info.Delivered.Stream + 1, paused: info.Paused,
			asking: info.NumWaiting > 0,
			At:     cmp.Or(info.TimeStamp, time.Now()),
		}
		if one := info.Config.FilterSubject; one != "" {
			c.filters = []string{one}
		}
		for _, filter := range c.filters {
			if n, ok := keys.ParseFilter(filter, names.SubjectPrefix(), keys.Fired); ok && n != (keys.Namespace{}) {
				c.of = append(c.of, n.String())
			}
		}
		if len(c.filters) == 0 {
			c.filters = fired.CachedInfo().Config.Subjects
		}
		if info.Delivered.Last != nil {
			c.Last = *info.Delivered.Last
		}
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b Consumer) int { return cmp.Compare(a.Name, b.Name) })
	return all, list.Err()
}

// isOfDeliver reports whether a consumer's name is one of timerd deliver's. Such a name needs no quoting in commands.
func isOfDeliver(name string) bool {
	rest, ok := strings.CutPrefix(name, keys.DeliverDurable)
	_, err := keys.DecodeToken(strings.ReplaceAll(rest, "~", ""))
	return ok && err == nil && (rest == "" || rest[0] == '~')
}

// askAges asks for the age of the oldest waiting events. It stays unknown without the right to read the stream, or if
// NATS would take long.
func askAges(ctx context.Context, js jetstream.JetStream, of *jetstream.StreamInfo, consumers []Consumer) {
	behind := make([]*Consumer, 0, len(consumers))
	for i := range consumers {
		if consumers[i].Waiting > 0 {
			behind = append(behind, &consumers[i])
		}
	}
	slices.SortFunc(behind, func(a, b *Consumer) int { return cmp.Compare(b.Waiting, a.Waiting) })
	asked := 0
	for _, c := range behind {
		if asked += len(c.filters); asked > agesAsked {
			return
		}
		for _, filter := range c.filters {
			at, err := history.StoredAt(ctx, js, of, filter, c.next, c.Waiting)
			if ctx.Err() != nil {
				return
			}
			if err == nil && !at.IsZero() && (c.Oldest.IsZero() || at.Before(c.Oldest)) {
				c.Oldest = at
			}
		}
	}
}

// waits returns the age of the oldest waiting event, 0 if none waits or if unknown.
func (c *Consumer) waits() time.Duration {
	if c.Oldest.IsZero() {
		return 0
	}
	return c.At.Sub(c.Oldest)
}

// abandoned reports whether events wait and no process takes them.
func (c *Consumer) abandoned() bool {
	switch {
	case c.asking:
		return false
	case c.Working > 0, // perhaps in a process with no room for more calls, or one that died during them
		c.Waiting > 0 && c.Oldest.IsZero(): // perhaps for a moment, while a process restarts
		return !c.Last.IsZero() && c.At.Sub(c.Last) > waitsTooLong
	}
	return c.Waiting > 0 && c.waits() > asksSoon
}

// checkWebhooks judges timerd deliver: its log, its processes and its consumers.
func checkWebhooks(f *facts, p *diag.Findings) {
	if f.webhooksErr != nil {
		p.Warn(WebhookRights(f.Streams.Names), "cannot read the state of webhooks: %v", f.webhooksErr)
	}
	checkDeliverers(f.deliverers, p)
	w := f.webhooks
	if w == nil {
		return
	}
	for _, fault := range w.faults {
		p.Add(fault.Finding(diag.CheckWebhooks))
	}
	checkConsumers(w.Consumers, w.fired, p)
	if len(*p) == 0 && w.Log != nil {
		waiting, working := uint64(0), 0
		for _, c := range w.Consumers {
			waiting, working = waiting+c.Waiting, working+c.Working
		}
		p.OK("%s fits; consumers of timerd deliver: %d; events that wait: %d, in work: %d", w.Log.Config.Name,
			len(w.Consumers), waiting, working)
	}
}

// checkConsumers judges the consumers of timerd deliver, by the settings of their stream.
func checkConsumers(consumers []Consumer, of jetstream.StreamConfig, p *diag.Findings) {
	var paused, abandoned, behind backlog
	for i := range consumers {
		switch c := &consumers[i]; {
		case c.paused:
			paused.add(c, 0)
		case c.abandoned():
			abandoned.add(c, c.Waiting+uint64(c.Working))
		case c.waits() > waitsTooLong:
			behind.add(c, c.Waiting)
		}
	}
	dropped := dropped(of)
	if len(paused.names) > 0 {
		p.Warn(fmt.Sprintf("nats consumer resume %s %s", of.Name, paused.names[0]),
			"%s: paused, so nothing is delivered%s", names(paused.names), dropped)
	}
	if len(abandoned.names) > 0 {
		p.Warn(fmt.Sprintf("start timerd deliver with the newest file of that group; or, if no file names the group "+
			"any more: nats consumer rm %s %s --force", of.Name, abandoned.names[0]),
			"%s: %s, and no timerd deliver asks for them%s", names(abandoned.names), abandoned.events(), dropped)
	}
	if len(behind.names) > 0 {
		p.Warn("run more processes of timerd deliver, or give them more --calls; or, where a group calls one host "+
			"alone, more concurrency; how slow the hosts are: timerd deliveries --since 10m",
			"%s: %s, because there is no place for more calls%s", names(behind.names), behind.events(), dropped)
	}
}

// checkOthers judges the consumers of other programs, and the results of all handlers.
func checkOthers(f *facts, p *diag.Findings) {
	if f.webhooks != nil {
		checkIdle(f.webhooks.others, f.webhooks.fired, p)
		checkConsumption(f.webhooks.All, f.webhooks.fired, p)
	}
}

// checkIdle reports consumers of other programs with unread events and no reader.
func checkIdle(consumers []Consumer, of jetstream.StreamConfig, p *diag.Findings) {
	var idle backlog
	for i := range consumers {
		c := &consumers[i]
		if !c.asking && !c.paused && c.Waiting > 0 && c.waits() > idleTooLong && c.At.Sub(c.Last) > idleTooLong {
			idle.add(c, c.Waiting)
		}
	}
	if len(idle.names) > 0 {
		p.Warn(fmt.Sprintf("start its program; or, if nobody needs the consumer any more: nats consumer rm %s %s "+
			"--force", of.Name, diag.Word(clean(idle.names[0]))),
			"%s: %s, and no program asks for them%s", names(idle.names), idle.events(), dropped(of))
	}
}

// dropped returns a note on when a stream drops unread events.
func dropped(of jetstream.StreamConfig) string {
	if of.MaxAge <= 0 {
		return ""
	}
	return fmt.Sprintf("; %s drops them %s after they fired", of.Name, diag.Duration(of.MaxAge))
}

// backlog is the events that wait at consumers with the same problem.
type backlog struct {
	names   []string
	of      []string // namespaces
	waiting int64
	oldest  time.Duration // 0: not known
}

// add adds a consumer with its number of waiting events.
func (w *backlog) add(c *Consumer, waiting uint64) {
	w.names = append(w.names, c.Name)
	w.of = append(w.of, c.of...)
	w.waiting += int64(waiting)
	w.oldest = max(w.oldest, c.waits())
}

// events formats the number of waiting events.
func (w *backlog) events() string {
	of := ""
	if len(w.of) > 0 {
		of = " of " + distinct(w.of)
	}
	text := count(w.waiting, "event"+of+" waits", "events"+of+" wait")
	if w.oldest > 0 {
		text += fmt.Sprintf(", the oldest for %s", diag.Duration(w.oldest.Round(time.Second)))
	}
	return text
}
