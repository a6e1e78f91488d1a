package notify

import (
	"cmp"
	"slices"
	"time"
)

const (
	// fewestAhead is how many events must have been ahead of one for its acknowledgement to tell what each of them took. A server
	// may answer only once it has stored all that it has, so few would be taken for slow.
	fewestAhead = 16
	// paceBatches is of how many batches the quickest is remembered, and paceFor for how long: a disk that stalls says nothing of later
	// batches. Where there are none for so long, one is tried.
	paceBatches = 16
	paceFor     = 2 * time.Second
	// manyEvents is how many events a batch must have had to tell what each takes: of few, most is what the batch takes itself.
	manyEvents = 100
	// firstBatch and firstShare are taken for what a batch takes, and each event in a large one, until batches tell: so on a disk
	// of 2026 with 0.2 ms for a sync.
	firstBatch = 3 * time.Millisecond
	firstShare = 40 * time.Microsecond
	// gain is how many times as quick a batch has to be to be worth it.
	gain = 2
	// sample is how many events tell what each takes: so many may always be with the server, once one was acknowledged.
	sample = 2 * fewestAhead
	// firstStale is after how long so many are published alone, to see whether that takes long indeed or the machine had stalled. The next
	// time is after twice as long, and so on up to stale.
	firstStale = 100 * time.Millisecond
	stale      = 10 * time.Second
)

// pace reckons what events take to be stored one by one, and together. It reads acknowledgements alone: one that took longer
// than that of a lone event did waited for those ahead of it, so a server far away is not taken for a slow one. The zero value
// knows nothing.
type pace struct {
	known   bool          // an event was acknowledged
	lone    time.Duration // the acknowledgement of an event that the server had nothing beside
	each    time.Duration // what one event takes that is not the first; 0 before that is known
	at      time.Time     // when each was measured last, or was about to be
	again   time.Duration // after how long it is measured again
	batches []took        // the last ones
}

// took is what a batch took.
type took struct {
	events int
	d      time.Duration
	at     time.Time
}

// one takes the time of an acknowledgement, of an event that so many were ahead of. lone says that the server had no other
// meanwhile.
func (p *pace) one(ahead int, lone bool, d time.Duration, now time.Time) {
	p.known = true
	if lone {
		if p.lone == 0 || d < p.lone {
			p.lone = d
		}
		p.lone += (d - p.lone) / 8
	}
	if ahead < fewestAhead {
		return
	}
	each := max((d-p.lone)/time.Duration(ahead), 1)
	if p.each == 0 {
		p.each = each
	}
	p.each += (each - p.each) / 8
	p.at = now
}

// batch takes the time of a batch of n events.
func (p *pace) batch(n int, d time.Duration, now time.Time) {
	if len(p.batches) == paceBatches {
		p.batches = slices.Delete(p.batches, 0, 1)
	}
	p.batches = append(p.batches, took{n, d, now})
}

// reckon returns what a batch of n events takes.
func (p *pace) reckon(n int) time.Duration {
	var all, share time.Duration
	for _, b := range p.batches {
		if all == 0 || b.d < all {
			all = b.d
		}
		if each := b.d / time.Duration(b.events); b.events >= manyEvents && (share == 0 || each < share) {
			share = each
		}
	}
	return max(cmp.Or(all, firstBatch), cmp.Or(share, firstShare)*time.Duration(n))
}

// room returns how many more events to publish one by one while so many are with the server: as many as take as long as a batch
// would, or a few. Others had better wait for each other. The very first one is alone, so that it tells how far away the server is.
func (p *pace) room(out int) int {
	switch {
	case !p.known:
		return 1 - out
	case p.each == 0:
		return sample - out
	}
	return max(int(p.reckon(out)/p.each), sample) - out
}

// split returns how many of n events to publish one by one, and how many of the others together, now that there is room for so
// many. What is left waits.
func (p *pace) split(n, room int, now time.Time) (alone, together int) {
	p.batches = slices.DeleteFunc(p.batches, func(b took) bool { return now.Sub(b.at) > paceFor })
	switch {
	case p.each == 0:
		return min(n, room), 0
	case !p.together(batchEvents):
		p.again = firstStale
		return n, 0
	case !p.together(n):
		return n, 0
	case now.Sub(p.at) > cmp.Or(p.again, firstStale):
		p.at, p.again = now, min(2*cmp.Or(p.again, firstStale), stale)
		return min(n, sample), 0 // no batch beside them
	}
	return 0, n
}

// together reports whether n events are quicker as a batch, by so much that it is worth it.
func (p *pace) together(n int) bool { return time.Duration(n)*p.each > gain*p.reckon(n) }
