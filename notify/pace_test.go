package notify

import (
	"testing"
	"time"
)

// measured returns p after n lone events, out at a time with the server. An event takes the server the time each; an
// answer takes far.
func measured(p pace, n, out int, each, far time.Duration, now time.Time) pace {
	for i := range n {
		ahead := i % out
		p.ackedAlone(ahead, out == 1, far+time.Duration(ahead+1)*each, now)
	}
	return p
}

func first(alone, _ int) int { return alone }

func TestPace(t *testing.T) {
	t.Parallel()
	now := time.Now()
	lone := func(each, far time.Duration) pace { return measured(pace{}, 16, 1, each, far, now) }
	for name, c := range map[string]struct {
		p    pace
		n    int
		want int // the number of lone messages among n
	}{
		"nothing is known": {pace{}, 500, 100},
		"far away, only the first one alone": {measured(measured(pace{}, 1, 1, 8*time.Microsecond, 50*time.Millisecond,
			now), sample, sample, 8*time.Microsecond, 50*time.Millisecond, now), 500, 500},
		"unsynced": {measured(lone(8*time.Microsecond, 0), 500, 100, 8*time.Microsecond, 0,
			now), 500, 500},
		"unsynced and far away": {measured(lone(8*time.Microsecond, 5*time.Millisecond), 500, 100,
			8*time.Microsecond, 5*time.Millisecond, now), 500, 500},
		"synced": {measured(lone(200*time.Microsecond, 0), 500, 100, 200*time.Microsecond,
			0, now), 500, 0},
		"synced, few": {measured(lone(200*time.Microsecond, 0), 500, 100, 200*time.Microsecond,
			0, now), 20, 20},
		"synced, slow disk, few": {measured(lone(2*time.Millisecond, 0), 500, 100, 2*time.Millisecond, 0,
			now), 20, 0},
		"synced, never a lone one": {measured(pace{}, 500, 100, 200*time.Microsecond, time.Millisecond, now),
			500, 0},
		"synced, measured a while ago": {measured(pace{}, 500, 100, 200*time.Microsecond, 0,
			now.Add(-time.Minute)), 500, sample},
	} {
		if got := first(c.p.split(c.n, 100, now)); got != c.want {
			t.Errorf("%s: %d of %d are published alone, want %d (%+v)", name, got, c.n, c.want, c.p)
		}
	}
}

// If batches prove no quicker, there are none for a while; one stalled batch proves nothing if others did not stall.
func TestPaceLearnsFromBatches(t *testing.T) {
	t.Parallel()
	now := time.Now()
	p := measured(pace{}, 500, 100, 200*time.Microsecond, 0, now)
	p.batch(500, time.Second, now)
	if got := first(p.split(500, 100, now)); got != 500 {
		t.Errorf("after a batch that took a second %d of 500 are published alone", got)
	}
	p.batch(500, 10*time.Millisecond, now)
	if got := first(p.split(500, 100, now)); got != 0 {
		t.Errorf("after a quick batch %d of 500 are published alone", got)
	}
	for range paceBatches {
		p.batch(500, time.Second, now)
	}
	if got := first(p.split(500, 100, now)); got != 500 {
		t.Errorf("after many slow batches %d of 500 are published alone", got)
	}
	later := now.Add(paceFor + time.Second)
	if got := first(p.split(500, 100, later)); got != sample {
		t.Errorf("without a batch for a while %d of 500 are published alone, to measure it", got)
	}
	if got := first(p.split(500, 100, later)); got != 0 {
		t.Errorf("after that %d of 500 are published alone", got)
	}
}

// Small batches, or a disk that stalled during them, do not speak against large ones.
func TestPaceOfSmallBatches(t *testing.T) {
	t.Parallel()
	now := time.Now()
	p := measured(pace{}, 500, 100, 200*time.Microsecond, 0, now)
	for range paceBatches {
		p.batch(30, 9*time.Millisecond, now)
	}
	if got := first(p.split(30, 100, now)); got != 30 {
		t.Errorf("after small batches that were no quicker %d of 30 are published alone", got)
	}
	if got := first(p.split(500, 100, now)); got != 0 {
		t.Errorf("after small batches %d of 500 are published alone", got)
	}
}

// Events wait for each other once the server's events take the time of a batch; a few are always sent.
func TestPaceBoundsWhatIsSentAlone(t *testing.T) {
	t.Parallel()
	p := measured(pace{}, 500, 100, 200*time.Microsecond, 0, time.Now())
	if got := p.room(0); got < sample || got > 100 {
		t.Errorf("%d may be sent alone, want some %d", got, sample)
	}
	if got := p.room(100); got > 0 {
		t.Errorf("%d more may be sent while 100 are with the server", got)
	}
	slow := pace{known: true, perEvent: time.Hour}
	if slow.room(0) != sample || slow.room(sample) != 0 { // enough to notice a quicker server
		t.Errorf("with a server that takes an hour there is room for %d, and then %d", slow.room(0), slow.room(sample))
	}
	if first := (&pace{}); first.room(0) != 1 || first.room(1) != 0 {
		t.Error("the first one is not alone")
	}
}

// A machine that stalls makes events look slow for a moment only; on a slow disk they are measured ever more seldom.
func TestPaceMeasuresAgain(t *testing.T) {
	t.Parallel()
	now := time.Now()
	p := measured(pace{}, 500, 100, 8*time.Microsecond, 0, now)
	p = measured(p, 22, 22, time.Millisecond, 0, now) // a stall
	if alone, together := p.split(500, 100, now); alone != 0 || together != 500 {
		t.Fatalf("in the stall %d are published alone and %d together", alone, together)
	}
	now = now.Add(2 * firstStale)
	if alone, together := p.split(500, 100, now); alone != sample || together != 0 {
		t.Errorf("after it %d are published alone and %d together", alone, together)
	}
	p = measured(p, sample, sample, 8*time.Microsecond, 0, now)
	if alone, together := p.split(500, 100, now); alone != 500 || together != 0 {
		t.Errorf("when that is known %d are published alone and %d together", alone, together)
	}
	p = measured(pace{}, sample, sample, time.Millisecond, 0, now)
	samples := 0
	for range 1000 { // 10 s
		now = now.Add(10 * time.Millisecond)
		if alone, _ := p.split(100, 100, now); alone > 0 {
			samples++
			p = measured(p, sample, sample, time.Millisecond, 0, now)
		}
	}
	if samples < 4 || samples > 8 {
		t.Errorf("on a slow disk it was measured %d times in 10 s", samples)
	}
}

// One quick answer among slow ones does not send a thousand events to a slow disk.
func TestPaceIsNotMisledByOneQuickAnswer(t *testing.T) {
	t.Parallel()
	now := time.Now()
	p := measured(pace{}, 500, 100, 300*time.Microsecond, 0, now)
	p.ackedAlone(sample, false, time.Nanosecond, now)
	if got := p.room(0); got > 2*sample {
		t.Errorf("%d may be sent alone", got)
	}
	if got := first(p.split(500, 100, now)); got != 0 {
		t.Errorf("%d of 500 are published alone", got)
	}
}
