package listener

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/testenv"
)

// uncovered is a Coverage that records nothing.
type uncovered struct{}

func (uncovered) Gap(string)               {}
func (uncovered) SetComplete(bool)         {}
func (uncovered) SetBeyond(bool)           {}
func (uncovered) Audited() <-chan struct{} { return nil }

// Events missing while their flags are on, as after a standstill of this process, are not blamed on the flags.
func TestLostEventsAndTheirFlags(t *testing.T) {
	t.Parallel()
	rdb := testenv.Redis(t).Client()
	for flags, want := range map[string]string{
		NotifyFlags: "keyspace events were lost or are late: none with the flags Ex arrived for 5s, " +
			"though the flags are on",
		"KA": "keyspace events were lost: the flags E had been switched off; they are on again",
		"":   "had been switched off; they are on again",
	} {
		if err := rdb.ConfigSet(t.Context(), parameter, flags).Err(); err != nil {
			t.Fatal(err)
		}
		c := &canary{rdb: rdb, reported: &reported{}, coverage: uncovered{}, log: slog.New(slog.DiscardHandler),
			timeout: 5 * time.Second}
		err := c.reportLost(t.Context(), []string{"Ex"})
		if lost, ok := errors.AsType[*eventsLostError](err); !ok || !strings.Contains(lost.Error(), want) {
			t.Errorf("flags %q: %v, want %q", flags, err, want)
		}
		is, err := rdb.ConfigGet(t.Context(), parameter).Result()
		if err != nil || MissingFlags(is[parameter]) != "" {
			t.Errorf("flags %q: %v, %v afterwards", flags, is, err)
		}
	}
}
