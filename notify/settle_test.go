package notify

import (
	"testing"

	"github.com/timerd-io/timerd/schedule"
)

func TestLargePayloadsAreSettledFewAtATime(t *testing.T) {
	t.Parallel()
	q := queue{wake: make(chan struct{}, 1), closing: true}
	large := make([]byte, settleBytes/2)
	for _, payload := range [][]byte{large, large, large, make([]byte, 2*settleBytes), nil, {1}} {
		q.addSettle(schedule.Firing{Payload: payload})
	}
	for i, want := range []int{2, 1, 1, 2, 0} {
		_, settles, _ := q.next()
		if len(settles) != want {
			t.Errorf("call %d settles %d firings, want %d", i+1, len(settles), want)
		}
		for _, f := range settles {
			if f.Payload != nil {
				t.Errorf("call %d keeps a payload", i+1)
			}
		}
	}
}
