package deliver

import (
	"context"
	"net/http"
	"sync"
)

// routes is a configuration with the clients of its endpoints, and with the group's coverage.
type routes struct {
	config  *Config
	clients map[*Endpoint]*http.Client
	covers  coverage
	still   *inquiry // whether the group uses this configuration
}

// route returns the routes of a group's configuration.
func (d *Deliverer) route(g *group, covers coverage) *routes {
	r := &routes{config: g.config, clients: map[*Endpoint]*http.Client{}, covers: covers}
	for _, e := range g.config.Endpoints {
		r.clients[e] = newClient(newTransport(e, len(g.config.Endpoints), d.Proxy))
	}
	r.still = &inquiry{ask: func() (bool, error) {
		ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
		defer cancel()
		return g.rules(ctx)
	}}
	return r
}

// covering returns the same routes with another coverage.
func (r *routes) covering(c coverage) *routes {
	next := *r
	next.covers = c
	return &next
}

// close closes idle connections, and the others once they are idle.
func (r *routes) close() {
	for _, c := range r.clients {
		c.CloseIdleConnections()
	}
}

// rules holds the routes in use, and announces a change.
type rules struct {
	mu      sync.Mutex
	now     *routes
	changed chan struct{} // closed when now changes
}

func newRules(r *routes) *rules { return &rules{now: r, changed: make(chan struct{})} }

// get returns the routes, and a channel closed at their next change.
func (r *rules) get() (*routes, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now, r.changed
}

func (r *rules) set(next *routes) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now = next
	close(r.changed)
	r.changed = make(chan struct{})
}

// inquiry asks one question for many callers. A caller gets an answer to a question asked after its call. Questions are
// asked one after the other, however many callers wait.
type inquiry struct {
	ask func() (bool, error)

	mu     sync.Mutex
	asking bool
	next   *round // for the callers since the last question
}

// round is one question.
type round struct {
	done chan struct{} // closed after the answer
	yes  bool
	err  error
}

// answer returns the answer, or an error once ctx has ended.
func (q *inquiry) answer(ctx context.Context) (bool, error) {
	q.mu.Lock()
	if q.next == nil {
		q.next = &round{done: make(chan struct{})}
	}
	r := q.next
	if !q.asking {
		q.asking = true
		go q.run()
	}
	q.mu.Unlock()
	select {
	case <-r.done:
		return r.yes, r.err
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

// run asks until no caller waits.
func (q *inquiry) run() {
	for {
		q.mu.Lock()
		r := q.next
		q.next = nil
		q.asking = r != nil
		q.mu.Unlock()
		if r == nil {
			return
		}
		r.yes, r.err = q.ask()
		close(r.done)
	}
}
