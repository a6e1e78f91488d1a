package notify

import (
	"cmp"
	"slices"
	"time"
)

const (
	// fewestAhead is the least number of events ahead with which an acknowledgement measures the time of each event. A
	// server may answer only once it has stored all of them, so with fewer events each would look slow.
	fewestAhead = 16
	// paceBatches and paceFor limit the number and the age of measured batches. The quickest of these counts, because a
	// stall of the disk says nothing about later batches. After paceFor without a batch, one is tried.
	paceBatches = 16
	paceFor     = 2 * time.Second
	// manyEvents is the least size with which a batch measures the time of each event. In a smaller batch the fixed
	// cost prevails.
	manyEvents = 100
	// firstBatch and firstShare are the assumed times of a batch, and of each event in a large batch, before any was
	// measured: those of a disk of 2026 with 0.2 ms for a sync.
	firstBatch = 3 * time.Millisecond
	firstShare = 40 * time.Microsecond
	// gain is the least gain in speed for which a batch is worth while.
	gain = 2
	// sample is the number of events that measure the time of each event. So many may always be with the server, once
	// one was acknowledged.
	sample = 2 * fewestAhead
	// firstStale is the age of a measurement after which a sample is published alone: the disk may really be slow, or
	// the machine had stalled. The next such age is twice as long, and so on up to stale.
	firstStale = 100 * time.Millisecond
	stale      = 10 * time.Second
)

// pace estimates the times of events stored one by one, and together, from acknowledgements alone. If an event took
// longer than a lone one, it waited for the events ahead of it. So a distant server does not look slow. The zero value
// knows nothing.
type pace struct {
	known          bool          // an event was acknowledged
	rtt            time.Duration // latency of an event alone with the server
	perEvent       time.Duration // time of each event behind others; 0 before it is known
	at             time.Time     // last measurement of perEvent, or its beginning
	remeasureAfter time.Duration
	batches        []batchTime // the last batches
}

// batchTime is the measured time of a batch.
type batchTime struct {
	events int
	d      time.Duration
	at     time.Time
}

// ackedAlone records the latency d of an event published alone behind ahead others. lone means that the server had no
// other event meanwhile.
func (p *pace) ackedAlone(ahead int, lone bool, d time.Duration, now time.Time) {
	p.known = true
	if lone {
		if p.rtt == 0 || d < p.rtt {
			p.rtt = d
		}
		p.rtt += (d - p.rtt) / 8
	}
	if ahead < fewestAhead {
		return
	}
	perEvent := max((d-p.rtt)/time.Duration(ahead), 1)
	if p.perEvent == 0 {
		p.perEvent = perEvent
	}
	p.perEvent += (perEvent - p.perEvent) / 8
	p.at = now
}

// batch records the time d of a batch of n events.
func (p *pace) batch(n int, d time.Duration, now time.Time) {
	if len(p.batches) == paceBatches {
		p.batches = slices.Delete(p.batches, 0, 1)
	}
	p.batches = append(p.batches, batchTime{n, d, now})
}

// ofBatch returns the estimated time of a batch of n events.
func (p *pace) ofBatch(n int) time.Duration {
	var whole, share time.Duration
	for _, b := range p.batches {
		if whole == 0 || b.d < whole {
			whole = b.d
		}
		if each := b.d / time.Duration(b.events); b.events >= manyEvents && (share == 0 || each < share) {
			share = each
		}
	}
	return max(cmp.Or(whole, firstBatch), cmp.Or(share, firstShare)*time.Duration(n))
}

// room returns the number of further events to publish alone while out are with the server: as many as take the time of
// a batch, or a sample. Further events should wait for each other. The very first event goes alone, to measure the
// distance of the server.
func (p *pace) room(out int) int {
	switch {
	case !p.known:
		return 1 - out
	case p.perEvent == 0:
		return sample - out
	}
	return max(int(p.ofBatch(out)/p.perEvent), sample) - out
}

// split splits n events into a number to publish alone and a number to publish together, with room for so many alone.
// The rest waits.
func (p *pace) split(n, room int, now time.Time) (alone, together int) {
	p.batches = slices.DeleteFunc(p.batches, func(b batchTime) bool { return now.Sub(b.at) > paceFor })
	switch {
	case p.perEvent == 0:
		return min(n, room), 0
	case !p.together(batchEvents):
		p.remeasureAfter = firstStale
		return n, 0
	case !p.together(n):
		return n, 0
	case now.Sub(p.at) > cmp.Or(p.remeasureAfter, firstStale):
		p.at, p.remeasureAfter = now, min(2*cmp.Or(p.remeasureAfter, firstStale), stale)
		return min(n, sample), 0 // no batch beside them
	}
	return 0, n
}

// together reports whether a batch of n events is worth while.
func (p *pace) together(n int) bool { return time.Duration(n)*p.perEvent > gain*p.ofBatch(n) }
