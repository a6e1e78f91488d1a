package checker

import (
	"testing"

	"github.com/timerd-io/timerd/torture/internal/history"
)

// A timer may have been shifted by each of many resumes: the times at which it may be due stay few, and none is left
// out.
func TestDueTimesAfterManyResumesStayFew(t *testing.T) {
	const due, resumes = 1_000_000, 40
	f := newFiring(history.Op{}, due, due, may)
	ends := int64(due)
	for i := range int64(resumes) {
		h := &hold{since: window{0, 1}, ended: window{1000 + 7*i, 1010 + 7*i}}
		f.shift(h, false, 0)
		ends += h.lengths().to
	}
	if len(f.dues) > mostDues || f.from != due || f.to != ends {
		t.Errorf("%d due times from %d to %d, want at most %d from %d to %d", len(f.dues), f.from, f.to, mostDues, due,
			ends)
	}
	for by, want := range map[int64]bool{0: true, 1005: true, 2010: true, 500: false} {
		if f.isDue(due+by, 0) != want {
			t.Errorf("due after %d: %v", by, !want)
		}
	}
}
