package producers

import (
	"fmt"
	"strconv"

	"github.com/timerd-io/timerd/torture/internal/history"
)

// hook is a timer whose event is delivered to a receiver of webhooks. Nothing else becomes of its key: it is timerd deliver
// that has it tried again.
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

// hook returns a payload that names one of the URLs, the nth or so.
func (p *Producers) hook(id string, n int) string {
	return fmt.Sprintf(`{"order":%q,"notify_url":%q}`, id, p.Hooks[n%len(p.Hooks)])
}
