package status

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/keys"
)

// NATS is the state of NATS.
type NATS struct {
	Server  string   `json:"server"` // its URL, without secrets
	Streams []Stream `json:"streams"`
	// DeadLetters is how many messages the stream of dead letters has; nil if not known.
	DeadLetters *uint64 `json:"deadletters"`
	// Webhooks are the consumers of timerd deliver; none if it is not used, or they are not known.
	Webhooks []WebhookConsumer `json:"webhooks,omitempty"`
}

// Stream is the state of a stream. A limit that is 0 is none.
type Stream struct {
	Name        string `json:"name"`
	Error       string `json:"error,omitempty"` // why its state is not known
	Messages    uint64 `json:"messages"`
	Bytes       uint64 `json:"bytes"`
	MaxAge      int64  `json:"maxage"` // in s
	MaxBytes    int64  `json:"maxbytes"`
	MaxMessages int64  `json:"maxmessages"`
	Full        bool   `json:"full"` // it takes no more messages
	Replicas    int    `json:"replicas"`
	Current     int    `json:"current"`              // how many of these are up to date
	Leaderless  bool   `json:"leaderless,omitempty"` // no server of its cluster leads it

	full *streams.Fault // why it takes no more messages
}

// allStreams is the least number of streams.
const allStreams = 3

// gatherNATS returns nil if NATS does not answer. lost gets the losses that nobody has acknowledged.
func (s Sources) gatherNATS(ctx context.Context, p *diag.Findings, lost *[]streams.Loss) *NATS {
	if s.JetStream == nil {
		if s.NoNATS.Text != "" {
			unreached(s.NoNATS, p)
		}
		return nil
	}
	soon, cancel := context.WithTimeout(ctx, answerWait)
	defer cancel()
	account := askAccount(soon, s.JetStream)
	n := &NATS{Server: s.JetStream.Conn().ConnectedUrlRedacted()}
	state := s.askState(ctx, lost)
	defer state(p)
	faults, missing, err := streams.Check(soon, s.JetStream, s.Streams)
	switch a := account.within(err == nil); {
	case a.err != nil && (err != nil || !streams.NotUp(a.err)):
		unreached(NoJetStream(a.err), p)
		return nil
	case err != nil:
		unanswered(err, p)
	case a.full != nil:
		p.Fail(diag.CheckStreams, a.full.Remedy, "%s: timers wait in Redis", a.full.What)
	}
	for _, name := range missing {
		f := diag.Finding{Level: diag.Fail, Check: diag.CheckStreams, Text: "there is no stream " + name, Fix: "start timerd, which makes it; if one runs, its log says why it cannot"}
		if len(missing) == allStreams { // as before the first start
			f.Level = diag.Warn
		}
		p.Add(f)
	}
	for _, f := range faults {
		*p = append(*p, f.Finding(diag.CheckStreams))
	}
	known := s.gatherStreams(soon, n, err == nil, p)
	if led := checkLeaders(n.Streams, p); led && known {
		s.gatherWebhooks(ctx, n, p)
	}
	return n
}

// askState asks for what timerds and processes of timerd deliver have said in NATS. What it returns waits for the answer, and adds it,
// but for what was lost.
func (s Sources) askState(ctx context.Context, lost *[]streams.Loss) func(*diag.Findings) {
	var hindered []streams.Deliverer
	read := make(chan error, 1)
	go func() {
		var err error
		if *lost, err = streams.ReadLosses(ctx, s.JetStream, s.Streams); err == nil {
			hindered, err = streams.ReadDeliverers(ctx, s.JetStream, s.Streams)
		}
		read <- err
	}()
	return func(p *diag.Findings) {
		err := <-read
		checkDeliverers(hindered, p)
		if err != nil && !p.Failed() && len(*lost) == 0 {
			p.Warn(diag.CheckLosses, fmt.Sprintf("let the NATS user call $JS.API.STREAM.INFO.%[1]s and $JS.API.STREAM.MSG.GET.%[1]s", s.Streams.StateStream()), "cannot tell whether data was lost: %v", err)
		}
	}
}

// gatherStreams adds the state of each stream, and returns whether that of all is known. It was not if known is false.
func (s Sources) gatherStreams(ctx context.Context, n *NATS, known bool, p *diag.Findings) bool {
	for _, name := range []string{s.Streams.FiredStream(), s.Streams.RetryStream(), s.Streams.DeadStream()} {
		stream, err := s.JetStream.Stream(ctx, name)
		switch {
		case errors.Is(err, jetstream.ErrStreamNotFound):
			continue // see above
		case err != nil:
			n.Streams = append(n.Streams, Stream{Name: name, Error: err.Error()})
			if known {
				unanswered(err, p)
			}
			known = false
			continue
		}
		state := newStream(name, stream.CachedInfo())
		checkStream(&state, s.Streams.Names, acknowledged(ctx, stream, s.Streams.Names, &state), p)
		n.Streams = append(n.Streams, state)
		if name == s.Streams.DeadStream() {
			n.DeadLetters = &state.Messages
			if state.Messages > 0 {
				p.Warn(diag.CheckLetters, "look at them, then run timerd dead replay or timerd dead purge: timerd dead ls", "dead letters in %s: %d", name, state.Messages)
			}
		}
	}
	return known
}

// answerWait is how long JetStream may take to tell the state of the streams.
const answerWait = 2500 * time.Millisecond

// accountWait is how long to wait for the answer about the account once the streams have answered: a user without the right gets
// none.
const accountWait = 250 * time.Millisecond

// asked is a request about the account that is under way.
type asked chan accountAnswer

type accountAnswer struct {
	full *streams.Fault // why the account stores no more messages
	err  error
}

func askAccount(ctx context.Context, js jetstream.JetStream) asked {
	answer := make(asked, 1)
	go func() {
		account, err := streams.CheckAccount(ctx, js)
		a := accountAnswer{err: err}
		if err == nil {
			a.full, _ = errors.AsType[*streams.Fault](streams.AccountFullness(account, 0))
		}
		answer <- a
	}()
	return answer
}

// within returns the answer, or none if it is not needed and takes long.
func (a asked) within(optional bool) accountAnswer {
	if !optional {
		return <-a
	}
	select {
	case answer := <-a:
		return answer
	case <-time.After(accountWait):
		return accountAnswer{}
	}
}

// gatherWebhooks adds the webhooks.
func (s Sources) gatherWebhooks(ctx context.Context, n *NATS, p *diag.Findings) {
	w, err := s.Webhooks.get(func() (*Webhooks, error) { return GatherWebhooks(ctx, s.JetStream, s.Streams) })
	if err != nil {
		p.Warn(diag.CheckWebhooks, WebhookRights(s.Streams.Names), "cannot tell the state of webhooks: %v", err)
	}
	if w == nil {
		return
	}
	*p = append(*p, w.Problems...)
	if w.Log == nil {
		return
	}
	state := newStream(w.Log.Config.Name, w.Log)
	checkStream(&state, s.Streams.Names, 0, p)
	checkLeaders([]Stream{state}, p)
	n.Streams, n.Webhooks = append(n.Streams, state), w.Consumers
}

// newStream reads the state of a stream.
func newStream(name string, info *jetstream.StreamInfo) Stream {
	c, state := info.Config, info.State
	s := Stream{
		Name: name, Messages: state.Msgs, Bytes: state.Bytes, MaxAge: int64(c.MaxAge.Seconds()),
		MaxBytes: max(c.MaxBytes, 0), MaxMessages: max(c.MaxMsgs, 0), Replicas: max(c.Replicas, 1), Current: 1,
	}
	s.full, s.Full = errors.AsType[*streams.Fault](streams.Fullness(info, 0))
	if info.Cluster != nil && s.Replicas > 1 {
		s.Leaderless = streams.Leaderless(info)
		for _, peer := range info.Cluster.Replicas {
			if peer.Current && !peer.Offline {
				s.Current++
			}
		}
	}
	return s
}

// acknowledged returns the last sequence that all consumers of a full stream have acknowledged; 0 if no message can be dropped,
// or that is not known. Unless one of them reads every subject, there may be events that nobody has read yet.
func acknowledged(ctx context.Context, stream jetstream.Stream, which keys.Names, s *Stream) uint64 {
	if s.full == nil {
		return 0
	}
	list := stream.ListConsumers(ctx)
	floor, some := uint64(math.MaxUint64), false
	for info := range list.Info() {
		floor = min(floor, info.AckFloor.Stream)
		some = some || info.Config.Durable != "" && info.Config.AckPolicy != jetstream.AckNonePolicy && readsAll(info.Config, which)
	}
	if list.Err() != nil || !some || floor < stream.CachedInfo().State.FirstSeq {
		return 0
	}
	return floor
}

// readsAll tells whether a consumer of the stream of firings gets the events of every namespace.
func readsAll(c jetstream.ConsumerConfig, which keys.Names) bool {
	isAll := func(filter string) bool {
		n, ok := keys.ParseFilter(filter, which.SubjectPrefix(), keys.Fired)
		return ok && n == (keys.Namespace{})
	}
	return c.FilterSubject == "" && len(c.FilterSubjects) == 0 || isAll(c.FilterSubject) || slices.ContainsFunc(c.FilterSubjects, isAll)
}
