package core_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/test/system"
)

// A repetition by the second, with a retry of an occurrence beside the next one, and a zone that nobody knows.
func TestCronIsPlannedAndFires(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	s.Env["TIMERD_RETRY"] = "*=50ms"
	p := s.Start()
	c := s.Collect()
	s.OK("repeat", "shop:report:yearly:1", "--cron", "0 0 1 1 *", "--tz", "Asia/Kathmandu", "x")
	testenv.Eventually(t, system.Patience, func() error {
		if out := s.OK("ls", "--repeating"); !strings.Contains(out, "cron 0 0 1 1 * Asia/Kathmandu") {
			return fmt.Errorf("timerd ls --repeating:\n%s", out)
		}
		return nil
	}, "the plan to be shown")
	s.OK("cancel", "shop:report:yearly:1")
	out := s.OK("repeat", "shop:report:daily:1", "--cron", "* * * * * *", "--tz", "Asia/Kathmandu", "--times", "2", "x")
	if strings.Count(out, "\n") != 4 || !strings.HasPrefix(out, "shop:report:daily:1 is set: ") ||
		!strings.Contains(out, "+05:45") {
		t.Errorf("timerd repeat:\n%s", out)
	}
	const text = "cron * * * * * * Asia/Kathmandu"
	for i, e := range s.Events(c, 2) {
		if e.Repeat != text || e.Occurrence != int64(i+1) || e.Due.UnixMilli()%1000 != 0 {
			t.Errorf("event %d is %+v", i, e)
		}
	}
	s.Retry(c.All()[0])
	for _, e := range s.Events(c, 3)[1:] {
		if want := int64(3 - e.Attempt); e.Repeat != text || e.Occurrence != want {
			t.Errorf("attempt %d is occurrence %d of %q, want %d", e.Attempt, e.Occurrence, e.Repeat, want)
		}
	}
	s.Settled()
	s.Do("FCALL", "timer_repeat", 1, "shop:report:daily:2", "x", "CRON", "@hourly", "TZ", "Europe/Berln")
	letter := s.Letters(1)[0]
	if want := `repeat: zone "Europe/Berln" is not in the time zone database`; !strings.HasPrefix(letter.DeadReason,
		want) {
		t.Errorf("the reason is %q, want %s", letter.DeadReason, want)
	}
	s.Settled()
	c.Stays(3, 100*time.Millisecond)
	p.Stop()
}
