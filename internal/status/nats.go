package status

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/ledger"
	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/keys"
)

// NATS is the state of NATS.
type NATS struct {
	Server  string   `json:"server"` // its URL, without secrets
	Streams []Stream `json:"streams"`
	// DeadLetters is the number of messages in the stream of dead letters; nil if unknown.
	DeadLetters *uint64 `json:"deadletters"`
	// Letters are the dead letters by namespace, with the last error; none if unknown, for the reason in NoLetters.
	// LettersLeftOut is the number of further namespaces, with fewer letters.
	Letters        []Letters `json:"letters,omitempty"`
	LettersLeftOut int       `json:"lettersleftout,omitempty"`
	NoLetters      string    `json:"noletters,omitempty"`
	// Consumers are the durable consumers of fired events, timerd deliver's too; none if unknown, for the reason in
	// NoConsumers. Unnamed has the failures of clients that name no consumer.
	Consumers   []Consumer `json:"consumers,omitempty"`
	NoConsumers string     `json:"noconsumers,omitempty"`
	Unnamed     []Failures `json:"unnamed,omitempty"`
	// Circuits are the hosts that processes of timerd deliver do not call for now, because calls failed.
	Circuits []Circuit `json:"circuits,omitempty"`
	// Webhooks are the consumers of timerd deliver; none if it is not used, or if they are unknown.
	Webhooks []Consumer `json:"webhooks,omitempty"`
}

// Circuit is a host that a process of timerd deliver does not call for now.
type Circuit struct {
	Instance string `json:"instance"`
	streams.Circuit
}

// Others returns the consumers of programs other than timerd deliver.
func (n *NATS) Others() []Consumer {
	return slices.DeleteFunc(slices.Clone(n.Consumers), func(c Consumer) bool {
		return slices.ContainsFunc(n.Webhooks, func(w Consumer) bool { return w.Name == c.Name })
	})
}

// Stream is the state of a stream. A limit of 0 means none.
type Stream struct {
	Name        string `json:"name"`
	Error       string `json:"error,omitempty"` // why its state is unknown
	Messages    uint64 `json:"messages"`
	Bytes       uint64 `json:"bytes"`
	MaxAge      int64  `json:"maxage"` // in s
	MaxBytes    int64  `json:"maxbytes"`
	MaxMessages int64  `json:"maxmessages"`
	Full        bool   `json:"full"`        // it takes no more messages
	DropsOldest bool   `json:"dropsoldest"` // instead of getting full
	Replicas    int    `json:"replicas"`
	Current     int    `json:"current"`              // of these, the number up to date
	Leaderless  bool   `json:"leaderless,omitempty"` // no server of its cluster leads it

	info *jetstream.StreamInfo // nil if its state is unknown
	// all consumers have acknowledged up to this message; 0 if unknown, or if the stream is not full
	floor uint64
}

// allStreams is the least number of streams.
const allStreams = 3

// gatherNATS asks NATS. f.nats stays nil if it does not answer.
func (f *facts) gatherNATS(ctx context.Context) {
	if f.JetStream == nil {
		return
	}
	soon, cancel := context.WithTimeout(ctx, answerWait)
	defer cancel()
	account := askAccount(soon, f.JetStream)
	said := make(chan struct{})
	go func() {
		defer close(said)
		f.gatherState(ctx)
	}()
	defer func() {
		<-said
		f.addCircuits()
	}()
	var err error
	f.faults, f.missing, err = streams.Check(soon, f.JetStream, f.Streams)
	a := account.within(err == nil)
	if a.err != nil && (err != nil || !streams.NotUp(a.err)) {
		f.natsSilent = new(NoJetStream(a.err))
		return
	}
	f.full, f.streamsErr = a.full, err
	f.nats = &NATS{Server: f.JetStream.Conn().ConnectedUrlRedacted()}
	f.gatherStreams(soon)
	switch leaderless, _ := leaders(f.nats.Streams); {
	case len(leaderless) > 0:
		f.nats.unread(strings.Join(leaderless, ", ") + ": no leader")
	case f.streamsErr != nil:
		f.nats.unread(f.streamsErr.Error())
	default:
		f.gatherWebhooks(ctx)
	}
}

// unread notes why neither consumers nor dead letters are known.
func (n *NATS) unread(why string) { n.NoConsumers, n.NoLetters = why, why }

// addCircuits adds the circuits that the processes of timerd deliver have reported.
func (f *facts) addCircuits() {
	if f.nats == nil {
		return
	}
	for _, d := range f.deliverers {
		for _, c := range d.Circuits {
			c.Host, c.Error = clean(c.Host), cleanUpTo(longestError, c.Error)
			f.nats.Circuits = append(f.nats.Circuits, Circuit{clean(d.Instance), c})
		}
	}
}

// gatherState reads the reports of timerds and of timerd deliver's processes in NATS.
func (f *facts) gatherState(ctx context.Context) {
	if f.lost, f.stateErr = streams.ReadLosses(ctx, f.JetStream, f.Streams); f.stateErr == nil {
		f.deliverers, f.stateErr = streams.ReadDeliverers(ctx, f.JetStream, f.Streams)
	}
	if f.stateErr == nil {
		f.ledger, f.stateErr = ledger.Read(ctx, f.JetStream, f.Streams)
	}
	if f.stateErr == nil {
		f.uncounted, f.stateErr = streams.ReadCounting(ctx, f.JetStream, f.Streams, f.Written)
	}
}

// gatherUnwritten finds the streams that the server cannot write: no other answer shows that.
func (f *facts) gatherUnwritten(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, accountWait)
	defer cancel()
	for _, name := range []string{f.Streams.FiredStream(), f.Streams.RetryStream(), f.Streams.DeadStream()} {
		if fault, ok := errors.AsType[*streams.Fault](f.Written.Of(ctx, f.JetStream, name)); ok {
			f.unwritten = append(f.unwritten, fault)
		}
	}
}

// gatherStreams adds the state of each stream.
func (f *facts) gatherStreams(ctx context.Context) {
	n := f.nats
	for _, name := range []string{f.Streams.FiredStream(), f.Streams.RetryStream(), f.Streams.DeadStream()} {
		stream, err := f.JetStream.Stream(ctx, name)
		switch {
		case errors.Is(err, jetstream.ErrStreamNotFound):
			continue // it is among the missing ones
		case err != nil:
			n.Streams = append(n.Streams, Stream{Name: name, Error: err.Error()})
			f.streamsErr = cmp.Or(f.streamsErr, err)
			continue
		}
		state := NewStream(stream.CachedInfo())
		state.floor = acknowledged(ctx, stream, f.Streams.Names, &state)
		n.Streams = append(n.Streams, state)
		if name == f.Streams.DeadStream() {
			n.DeadLetters = &state.Messages
		}
	}
}

// checkNATS judges whether NATS answers, and has JetStream.
func checkNATS(f *facts, p *diag.Findings) {
	why := f.NoNATS
	switch {
	case f.JetStream != nil && f.natsSilent == nil:
		p.OK("%s", f.JetStream.Conn().ConnectedUrlRedacted())
		return
	case f.JetStream != nil:
		why = *f.natsSilent
	case why.Text == "":
		return
	case why.Level == diag.Warn:
		p.Add(why)
		return
	}
	p.Fail(why.Fix, "the state of the streams is unknown, and timers wait in Redis if the timerds do not reach NATS "+
		"either: %s", why.Text)
}

// checkStreams judges whether the streams exist, fit, and accept messages.
func checkStreams(f *facts, p *diag.Findings) {
	if f.nats == nil {
		return
	}
	if f.streamsErr != nil {
		p.Fail("look at the NATS server, and let the user call $JS.API.STREAM.INFO.*",
			"cannot read the state of the streams: %v", f.streamsErr)
	} else if f.full != nil {
		p.Fail(f.full.Remedy, "%s: timers wait in Redis", f.full.What)
	}
	for _, name := range f.missing {
		found := diag.Finding{Level: diag.Fail, Text: "there is no stream " + name,
			Fix: "start timerd, which makes it; if one runs, its log says why it cannot"}
		if len(f.missing) == allStreams { // as before the first start
			found.Level = diag.Warn
		}
		p.Add(found)
	}
	for _, fault := range slices.Concat(f.faults, f.unwritten) {
		p.Add(fault.Finding(diag.CheckStreams))
	}
	for i := range f.nats.Streams {
		checkStream(&f.nats.Streams[i], f.Streams.Names, f.backlog(f.nats.Streams[i].Name), p)
	}
	checkLeaders(f.nats.Streams, p)
	if names := f.Streams.Names; len(*p) == 0 {
		p.OK("%s, %s and %s fit; duplicate window at least %s", names.FiredStream(), names.RetryStream(),
			names.DeadStream(), diag.Duration(f.Streams.MinDuplicates))
	}
}

// checkLosses reports lost data until an operator acknowledges it.
func checkLosses(f *facts, p *diag.Findings) {
	for _, loss := range f.lost {
		p.Add(loss.Finding(f.redis.timersOn(loss.Server)))
	}
	if f.stateErr == nil || f.nats == nil || len(f.missing) > 0 || len(f.lost) > 0 {
		return
	}
	var streamsFound diag.Findings
	if checkStreams(f, &streamsFound); !streamsFound.Failed() { // otherwise the streams are the cause
		p.Warn(fmt.Sprintf("let the NATS user call $JS.API.STREAM.INFO.%[1]s and $JS.API.STREAM.MSG.GET.%[1]s",
			f.Streams.StateStream()), "cannot read whether data was lost: %v", f.stateErr)
	}
}

// checkCounting judges whether somebody would notice a loss of data.
func checkCounting(f *facts, p *diag.Findings) {
	if f.uncounted == nil || f.redis == nil {
		return
	}
	for _, timerd := range f.redis.Timerds {
		if f.redis.RealAt().Sub(timerd.Since) > streams.FirstCount {
			p.Add(f.uncounted.Finding(diag.CheckCounting))
			return
		}
	}
}

// checkLetters reports dead letters, and repetitions that ended, with the reason: it may suggest a time zone.
func checkLetters(f *facts, p *diag.Findings) {
	if f.nats == nil || f.nats.DeadLetters == nil || *f.nats.DeadLetters == 0 {
		return
	}
	p.Warn("look at them, then run timerd dead replay or timerd dead purge: timerd dead ls",
		"dead letters in %s: %d", f.Streams.DeadStream(), *f.nats.DeadLetters)
	for _, l := range f.nats.Letters {
		if why, ended := strings.CutPrefix(l.Reason, event.ReasonRepeat); ended {
			p.Warn("look which one it is, and set it again with timerd repeat: timerd dead ls "+l.Namespace,
				"a repetition of %s has ended: %s", l.Namespace, cleanUpTo(mostReason, why))
		}
	}
}

// mostReason limits a dead letter's reason in a finding, in bytes.
const mostReason = 250

// backlog returns how many messages wait for room in a stream, as far as known.
func (f *facts) backlog(stream string) int64 {
	switch r := f.redis; {
	case stream == f.Streams.FiredStream() && r != nil:
		return r.Owed + r.Firing
	case stream == f.Streams.DeadStream():
		for _, s := range f.nats.Streams {
			if s.Name == f.Streams.RetryStream() {
				return int64(s.Messages)
			}
		}
	}
	return 0
}

// checkStream judges the state of a stream. which has the names of the installation's streams.
func checkStream(s *Stream, which keys.Names, backlog int64, p *diag.Findings) {
	if !s.Full {
		return
	}
	full, _ := errors.AsType[*streams.Fault](streams.Fullness(s.info, 0, backlog))
	found := full.Finding(diag.CheckStreams)
	switch s.Name {
	case which.FiredStream():
		found.Text += ": timers wait in Redis"
		if s.floor > 0 {
			found.Fix += fmt.Sprintf(
				"; or, to delete the events that every consumer has acknowledged: nats stream purge %s --seq=%d "+
					"--force", s.Name, s.floor+1)
		}
	case which.DeadStream():
		found.Text += ": retry requests that become dead letters wait"
		found.Fix += "; or, to set the timers again: timerd dead replay"
	case which.DeliveryStream():
		found.Text += ": deliveries wait for it, and are not logged"
		found.Fix = "let it drop the oldest, as a log may: nats stream edit " + s.Name + " --discard=old --force"
	default:
		found.Text += ": consumers cannot ask for retries"
	}
	p.Add(found)
}

// leaders returns the streams of a NATS cluster without a leader, and the streams with replicas behind or away, in
// words.
func leaders(all []Stream) (leaderless, behind []string) {
	for _, s := range all {
		switch {
		case s.Leaderless:
			leaderless = append(leaderless, s.Name)
		case s.Current < s.Replicas:
			behind = append(behind, fmt.Sprintf("%s: %d of %d", s.Name, s.Current, s.Replicas))
		}
	}
	return leaderless, behind
}

// checkLeaders judges whether all servers of a NATS cluster that keep the streams are up.
func checkLeaders(all []Stream, p *diag.Findings) {
	switch leaderless, behind := leaders(all); {
	case len(leaderless) > 0:
		p.Fail(streams.NoLeaderFix, "%s: no leader, so nothing is taken", strings.Join(leaderless, ", "))
	case len(behind) > 0:
		p.Warn(streams.NoLeaderFix, "replicas that are up to date: %s", strings.Join(behind, "; "))
	}
}

// NoJetStream returns the problem when JetStream does not report the account's usage.
func NoJetStream(err error) diag.Finding {
	if fault, ok := errors.AsType[*streams.Fault](err); ok {
		return fault.Finding(diag.CheckNATS)
	}
	return diag.Of(diag.CheckNATS, fmt.Errorf("JetStream does not answer: %w", err), streams.SilentFix)
}

// answerWait bounds JetStream's answers about the streams.
const answerWait = 2500 * time.Millisecond

// accountWait bounds the wait for the answer about the account, counted from the answers about the streams. A user
// without the right gets no answer.
const accountWait = 250 * time.Millisecond

// asked is a pending request about the account.
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

// within returns the answer. If it is optional, it gives up after accountWait.
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
func (f *facts) gatherWebhooks(ctx context.Context) {
	f.webhooks, f.webhooksErr = f.Webhooks.get(func() (*Webhooks, error) {
		w, err := GatherWebhooks(ctx, f.JetStream, f.Streams)
		if err == nil && !f.Brief {
			w.Letters, w.lettersLeftOut, w.lettersErr = gatherLetters(ctx, f.JetStream, f.Streams)
		}
		return w, err
	}, func() bool { return errors.Is(f.JetStream.Conn().LastError(), nats.ErrPermissionViolation) })
	if f.webhooksErr != nil {
		f.nats.unread(f.webhooksErr.Error())
	}
	if w := f.webhooks; w != nil {
		f.nats.Consumers, f.nats.Unnamed = w.All, w.Unnamed
		f.nats.Letters, f.nats.LettersLeftOut = w.Letters, w.lettersLeftOut
		if w.lettersErr != nil {
			f.nats.NoLetters = w.lettersErr.Error()
		}
	}
	if w := f.webhooks; w != nil && w.Log != nil {
		f.nats.Streams, f.nats.Webhooks = append(f.nats.Streams, NewStream(w.Log)), w.Consumers
	}
}

// NewStream returns the state of a stream.
func NewStream(info *jetstream.StreamInfo) Stream {
	c, state := info.Config, info.State
	s := Stream{
		Name: c.Name, Messages: state.Msgs, Bytes: state.Bytes, MaxAge: int64(c.MaxAge.Seconds()),
		MaxBytes: max(c.MaxBytes, 0), MaxMessages: max(c.MaxMsgs, 0), Replicas: max(c.Replicas, 1), Current: 1,
	}
	s.info, s.Full, s.DropsOldest = info, streams.Fullness(info, 0, 0) != nil, c.Discard == jetstream.DiscardOld
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

// acknowledged returns the last sequence that all consumers of a full stream have acknowledged; 0 if no message can be
// dropped, or if unknown. Unless one consumer reads every subject, some events may be unread.
func acknowledged(ctx context.Context, stream jetstream.Stream, which keys.Names, s *Stream) uint64 {
	if !s.Full {
		return 0
	}
	list := stream.ListConsumers(ctx)
	floor, some := uint64(math.MaxUint64), false
	for info := range list.Info() {
		floor = min(floor, info.AckFloor.Stream)
		some = some || info.Config.Durable != "" && info.Config.AckPolicy != jetstream.AckNonePolicy &&
			readsAll(info.Config, which)
	}
	if list.Err() != nil || !some || floor < stream.CachedInfo().State.FirstSeq {
		return 0
	}
	return floor
}

// readsAll reports whether a consumer of the stream of firings gets the events of every namespace.
func readsAll(c jetstream.ConsumerConfig, which keys.Names) bool {
	isAll := func(filter string) bool {
		n, ok := keys.ParseFilter(filter, which.SubjectPrefix(), keys.Fired)
		return ok && n == (keys.Namespace{})
	}
	return c.FilterSubject == "" && len(c.FilterSubjects) == 0 || isAll(c.FilterSubject) ||
		slices.ContainsFunc(c.FilterSubjects, isAll)
}
