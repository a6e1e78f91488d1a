package history

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/timerd-io/timerd/keys"
)

const (
	// tailPause is the lifetime of a sample.
	tailPause = 500 * time.Millisecond
	// tailTimeout bounds the detection of a NATS that is away.
	tailTimeout = 2 * time.Second
	// tailRecords is the number of firings in a sample, and limits the messages read for it.
	tailRecords = 20
)

// Tail shows the newest firings to any number of viewers. It asks NATS for a few messages every half second,
// independent of the number of viewers and firings, and for none while nobody looks. Its methods may be called
// concurrently.
type Tail struct {
	reader *Reader

	mu     sync.Mutex
	sample Sample
}

// NewTail returns a Tail of r's firings.
func NewTail(r *Reader) *Tail { return &Tail{reader: r} }

// Sample is a view of the newest firings.
type Sample struct {
	// Records are the newest messages, newest first: all there are or, if there are many since the last sample, some of
	// these, evenly spread. They have neither content nor payload.
	Records []Record
	Seq     uint64    // the number of the stream's last message
	At      time.Time // time of the read
	Away    string    // the reason why the stream cannot be read now, so that Records are older; "" if it can
}

// Sample returns the current sample. It reads a new one if the last is half a second old, and waits 2 s at most.
func (t *Tail) Sample(ctx context.Context) Sample {
	t.mu.Lock()
	defer t.mu.Unlock()
	if time.Since(t.sample.At) < tailPause {
		return t.sample
	}
	// Other viewers wait for the same sample, so the read continues when this one leaves.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tailTimeout)
	defer cancel()
	fresh, err := t.read(ctx)
	if err != nil {
		fresh = Sample{Records: t.sample.Records, Seq: t.sample.Seq, Away: err.Error()}
	}
	fresh.At = time.Now()
	t.sample = fresh
	return fresh
}

// read reads a sample.
func (t *Tail) read(ctx context.Context) (Sample, error) {
	stream, err := Open(ctx, t.reader.js, t.reader.stream(keys.Fired))
	if err != nil {
		return Sample{}, err
	}
	state := stream.CachedInfo().State
	s := Sample{Seq: state.LastSeq}
	old, seen := t.sample.Records, t.sample.Seq
	if seen > s.Seq { // the stream was made again
		old, seen = nil, 0
	}
	bytes := 0
	for _, seq := range slices.Backward(spread(max(seen+1, state.FirstSeq), s.Seq, len(old) == 0)) {
		r, ok, err := t.reader.Get(ctx, keys.Fired, seq)
		if err != nil && len(s.Records) == 0 {
			return Sample{}, err
		}
		if err != nil || bytes > heldBytes {
			break // some messages are shown even if others are too large
		}
		if ok {
			bytes += len(r.Data)
			r.Data, r.Event.Data = nil, nil
			s.Records = append(s.Records, r)
		}
	}
	s.Records = append(s.Records, old...)
	s.Records = s.Records[:min(len(s.Records), tailRecords)]
	return s, nil
}

// spread returns some of the sequences from first to last, including last: the last ones, or else evenly spread ones.
func spread(first, last uint64, end bool) []uint64 {
	if first > last {
		return nil
	}
	n := last - first + 1
	if n > tailRecords && end {
		first, n = last-tailRecords+1, tailRecords
	}
	some := min(n, tailRecords)
	seqs := make([]uint64, some)
	for i := range some {
		seqs[i] = first + (i+1)*n/some - 1
	}
	return seqs
}
