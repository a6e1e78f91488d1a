package backoff

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var o Outage
		first, second := errors.New("first"), errors.New("second")
		says := func(want string) {
			t.Helper()
			got := ""
			if err := o.Err(3 * time.Second); err != nil {
				got = err.Error()
			}
			if got != want {
				t.Errorf("%q, want %q", got, want)
			}
		}
		says("")
		o.Note(first)
		time.Sleep(2 * time.Second)
		o.Note(second)
		says("")
		time.Sleep(time.Second)
		says("failing for 3s: second")
		o.Note(nil)
		says("")
		o.Note(first)
		says("")
		time.Sleep(time.Minute)
		says("failing for 1m0s: first")
		if !errors.Is(o.Err(0), first) {
			t.Error("the failure is not wrapped")
		}
	})
}
