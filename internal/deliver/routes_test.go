package deliver

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// Many ask at once, and each gets an answer to a question that was asked after it came; the questions are few.
func TestInquiryAnswersAreNewerThanTheirQuestion(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int64
		var yes atomic.Bool
		q := &inquiry{ask: func() (bool, error) {
			asked.Add(1)
			said := yes.Load()
			time.Sleep(time.Second)
			return said, nil
		}}
		ask := func(n int, want bool) {
			for range n {
				go func() {
					if got, err := q.answer(t.Context()); err != nil || got != want {
						t.Errorf("answer %t, %v; want %t", got, err, want)
					}
				}()
			}
		}
		ask(1, false)
		time.Sleep(time.Second / 2)
		yes.Store(true) // while the first question is under way
		ask(100, true)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := q.answer(ctx); err == nil {
			t.Error("an answer for somebody who has gone")
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if n := asked.Load(); n != 2 {
			t.Errorf("%d questions, want 2", n)
		}
	})
}
