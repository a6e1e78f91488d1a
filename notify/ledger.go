package notify

import (
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// ledger remembers what the stream has acknowledged, to notice that it has lost some of it: by a power cut before it was
// written to disk, or because older files were put in its place. A stream's sequences only rise. So an event that is sent
// after another's acknowledgement has a higher one, and the stream's last is never below what was acknowledged.
// Publisher.mu guards it.
type ledger struct {
	created time.Time // of the stream; another time is another stream, which begins anew; zero before it is known
	highest sequence  // acknowledged
	breach  *breach   // until it is known whether it is another stream
	below   int       // how many looks in a row have shown too low a sequence
}

// sequence is that of a message in the stream. Those before and after a breach do not compare: age counts the breaches.
type sequence struct {
	age int
	seq uint64
}

// breach is an event's sequence, or that of the next one, though a higher one had been acknowledged.
type breach struct{ seq, acknowledged uint64 }

// note takes the sequence of an event that was stored now, and the highest one that was acknowledged before the event was
// sent. It tells whether they contradict each other. Whether that is another stream is then to be found out.
func (l *ledger) note(after sequence, seq uint64) bool {
	switch {
	case after.age != l.highest.age:
	case seq > after.seq:
		l.highest.seq = max(l.highest.seq, seq)
	default:
		l.breach = &breach{seq, l.highest.seq}
		l.goOn(seq)
		return true
	}
	return false
}

// goOn has sequences count anew from one on.
func (l *ledger) goOn(seq uint64) {
	l.highest = sequence{l.highest.age + 1, seq}
	l.below = 0
}

// compare compares the stream's state with what was acknowledged before it was asked for. It returns a breach that this
// proves, or nil. A server that has just become the leader may not know all that is stored: what is too low has to be so
// twice.
func (l *ledger) compare(created time.Time, last uint64, acknowledged sequence) *breach {
	var proven *breach
	switch {
	case !l.created.Equal(created):
		if !l.created.IsZero() {
			l.goOn(last)
		}
		l.created, l.breach = created, nil
	case acknowledged.age != l.highest.age: // what is new, the next answer tells
	case l.breach != nil:
		proven, l.breach = l.breach, nil
	case last >= acknowledged.seq:
		l.below = 0
	case l.below == 0:
		l.below++
	default:
		proven = &breach{last + 1, acknowledged.seq}
		l.goOn(last)
	}
	return proven
}

// reconcile takes in what the stream says of itself, and the highest sequence that was acknowledged before it was asked.
func (p *Publisher) reconcile(info *jetstream.StreamInfo, acknowledged sequence) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.health.window = info.Config.Duplicates
	b := p.ledger.compare(info.Created, info.State.LastSeq, acknowledged)
	if b == nil {
		return
	}
	lost := b.acknowledged - b.seq + 1
	p.Logger.Error("NATS has lost events that it had acknowledged: their timers do not fire again", "count", lost,
		"err", fmt.Errorf("stream %s goes on at sequence %d, though %d was acknowledged", info.Config.Name, b.seq, b.acknowledged))
	p.OnLost(lost)
}
