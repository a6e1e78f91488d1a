package producers

import (
	"fmt"
	"strconv"

	"github.com/timerd-io/timerd/torture/internal/history"
)

// hook is a timer whose event goes to a receiver of webhooks. No other operation touches its key, because timerd
// deliver requests the retries.
func (l *life) hook() {
	kind := history.Timer
	if l.random.IntN(4) == 0 {
		kind = history.Set
	}
	l.do(history.Op{
		Key: l.key, Kind: kind, Payload: l.Producers.hook(strconv.Itoa(l.n), l.random.IntN(len(l.Hooks))), Attempt: 1,
		TTL: l.between(300, 5000).Milliseconds(),
	})
}

// hook returns a payload with one of the URLs. n picks the URL.
func (p *Producers) hook(id string, n int) string {
	return fmt.Sprintf(`{"order":%q,"notify_url":%q}`, id, p.Hooks[n%len(p.Hooks)])
}
