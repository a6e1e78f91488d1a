package service

import (
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/deliver"
	"github.com/timerd-io/timerd/internal/streams"
)

// A report has since when a host's circuit is open, and when it is probed next.
func TestCircuitsAreSaid(t *testing.T) {
	t.Parallel()
	d := &deliverer{outdated: func() *deliver.Outdated { return nil }, now: time.Now,
		failing: map[string]*streams.Circuit{}}
	begun := time.Now()
	d.noteCircuit("a:443", 30*time.Second)
	first := d.report().Circuits
	d.noteCircuit("a:443", time.Hour)
	second := d.report().Circuits
	if len(first) != 1 || len(second) != 1 || !first[0].Since.Equal(second[0].Since) ||
		first[0].Next.Before(begun.Add(30*time.Second)) || second[0].Next.Before(begun.Add(time.Hour)) {
		t.Errorf("%+v, then %+v", first, second)
	}
	d.noteCircuit("a:443", 0)
	if closed := d.report().Circuits; len(closed) != 0 {
		t.Errorf("%+v after it closed", closed)
	}
}
