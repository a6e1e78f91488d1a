package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/timerd-io/timerd/internal/devserver"
)

const (
	chunkBytes = 32 << 10
	maxQueued  = 64 // chunks on their way in one direction, so that a delay does not limit the rate

	// healTimeout bounds how long Heal tries to listen again on its port.
	healTimeout = 20 * time.Second
)

// Proxy forwards TCP connections to a target, and misbehaves on request. It starts healthy. All methods may be called
// from any goroutine.
type Proxy struct {
	report    func(error)
	target    string
	port      int
	accepting sync.WaitGroup

	mu       sync.Mutex
	listener net.Listener // nil while cut
	live     *connections
	hole     chan struct{} // closed by Heal; nil while bytes may pass
	delay    time.Duration
	rate     int // bytes a second; 0 for no limit
}

// connections are the connections accepted since the last Cut or Drop.
type connections struct {
	sync.WaitGroup
	ctx  context.Context //nolint:containedctx // that of the goroutines counted here
	drop context.CancelFunc
}

func newConnections() *connections {
	ctx, drop := context.WithCancel(context.Background())
	return &connections{ctx: ctx, drop: drop}
}

// NewProxy starts a proxy for the server at target, a host:port; the caller closes it. While the target is down,
// connections are accepted and closed at once. Later faults go to report, from any goroutine.
func NewProxy(target string, report func(error)) (*Proxy, error) {
	p := &Proxy{report: report, target: target, live: newConnections()}
	err := devserver.OnFreePort(func(port int) error {
		p.port = port
		return p.listen()
	})
	if err != nil {
		return nil, fmt.Errorf("lab: starting a proxy for %s: %w", target, err)
	}
	return p, nil
}

// Close cuts every connection for good and returns once all is gone.
func (p *Proxy) Close() {
	p.Cut()
	p.accepting.Wait()
}

// Addr returns the proxy's host:port.
func (p *Proxy) Addr() string { return devserver.Address(p.port) }

// Cut closes every connection and refuses new ones until Heal: a server that is down.
func (p *Proxy) Cut() {
	p.mu.Lock()
	if p.listener != nil {
		p.close(p.listener)
		p.listener = nil
	}
	p.mu.Unlock()
	p.Drop()
}

// Drop closes every connection and goes on accepting new ones: a network that hiccups.
func (p *Proxy) Drop() {
	p.mu.Lock()
	old := p.live
	p.live = newConnections()
	p.mu.Unlock()
	old.drop()
	old.Wait()
}

// Blackhole lets connections live, and new ones be made, but passes nothing on in either direction until Heal: a
// silently broken network. Data sent meanwhile arrives after Heal, as with TCP, on the connections that still exist.
func (p *Proxy) Blackhole() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.hole == nil {
		p.hole = make(chan struct{})
	}
}

// Delay adds d to the way of every byte in each direction, from now on. Zero ends it.
func (p *Proxy) Delay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
}

// Throttle passes at most so many bytes a second on, in each direction of each connection, from now on. Zero ends it.
func (p *Proxy) Throttle(bytes int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rate = bytes
}

// Heal ends Cut, Blackhole, Delay and Throttle. The proxy listens on the same port as before.
func (p *Proxy) Heal() {
	p.mu.Lock()
	p.delay, p.rate = 0, 0
	if p.hole != nil {
		close(p.hole)
		p.hole = nil
	}
	cut := p.listener == nil
	p.mu.Unlock()
	if !cut {
		return
	}
	if err := devserver.Until(context.Background(), healTimeout, p.listen); err != nil {
		p.report(fmt.Errorf("lab: healing the proxy for %s: %w", p.target, err))
	}
}

func (p *Proxy) listen() error {
	l, err := net.Listen("tcp", p.Addr())
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.listener = l
	p.accepting.Go(func() { p.accept(l) })
	return nil
}

func (p *Proxy) accept(l net.Listener) {
	for {
		client, err := l.Accept()
		if err != nil {
			if !errors.Is(err, net.ErrClosed) {
				p.report(fmt.Errorf("lab: for %s: %w", p.target, err))
			}
			return
		}
		p.mu.Lock()
		if live := p.live; p.listener == l {
			live.Go(func() { p.serve(live.ctx, client) })
		} else { // cut meanwhile
			p.close(client)
		}
		p.mu.Unlock()
	}
}

// serve forwards between one client and the target until either closes, or ctx ends.
func (p *Proxy) serve(ctx context.Context, client net.Conn) {
	ctx, end := context.WithCancel(ctx)
	defer end()
	var d net.Dialer
	target, err := d.DialContext(ctx, "tcp", p.target)
	if err != nil {
		p.close(client)
		return
	}
	var both sync.WaitGroup
	both.Go(func() { p.forward(ctx, end, client, target) })
	both.Go(func() { p.forward(ctx, end, target, client) })
	<-ctx.Done()
	p.close(client)
	p.close(target)
	both.Wait()
}

// forward passes bytes from one connection to another until one of them fails or ctx ends, and then ends ctx.
func (p *Proxy) forward(ctx context.Context, end context.CancelFunc, from, to net.Conn) {
	type chunk struct {
		data []byte
		at   time.Time
	}
	queue := make(chan chunk, maxQueued)
	var reader sync.WaitGroup
	defer reader.Wait()
	defer end()
	reader.Go(func() {
		defer close(queue)
		for {
			buf := make([]byte, chunkBytes)
			n, err := from.Read(buf)
			if n > 0 {
				select {
				case queue <- chunk{buf[:n], time.Now()}:
				case <-ctx.Done():
					return
				}
			}
			if err != nil {
				return
			}
		}
	})
	for c := range queue {
		if p.hold(ctx, c.at, len(c.data)) != nil {
			break
		}
		if _, err := to.Write(c.data); err != nil {
			break
		}
	}
}

// hold blocks until a chunk of so many bytes that came in at this time may pass. The chunk before has passed just now.
func (p *Proxy) hold(ctx context.Context, at time.Time, bytes int) error {
	p.mu.Lock()
	wait := time.Until(at.Add(p.delay))
	if p.rate > 0 {
		wait = max(wait, time.Duration(bytes)*time.Second/time.Duration(p.rate))
	}
	p.mu.Unlock()
	if wait > 0 {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	p.mu.Lock()
	hole := p.hole
	p.mu.Unlock()
	if hole == nil {
		return nil
	}
	select {
	case <-hole:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (p *Proxy) close(c io.Closer) {
	if err := c.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		p.report(fmt.Errorf("lab: for %s: closing: %w", p.target, err))
	}
}
