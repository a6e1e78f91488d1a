// Package tcpproxy is a TCP proxy that can be told to misbehave, between a program under test and its
// servers.
package tcpproxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/timerd-io/timerd/internal/poll"
	"github.com/timerd-io/timerd/internal/ports"
)

// Proxy forwards TCP connections to a target and can be told to misbehave. It starts healthy.
// All methods may be called from any goroutine.
type Proxy struct {
	report func(error)
	target string
	port   int
	wg     sync.WaitGroup

	mu       sync.Mutex
	listener net.Listener // nil while cut
	conns    map[net.Conn]struct{}
	flow     chan struct{} // closed while bytes may pass
	delay    time.Duration
	cancel   context.CancelFunc // ends what was accepted since the last Cut
}

const (
	proxyChunk = 32 << 10
	proxyQueue = 64 // chunks on their way in one direction, so that a delay does not limit the rate

	// healTimeout bounds how long Heal tries to listen again on its port.
	healTimeout = 20 * time.Second
)

// New starts a proxy for the server at target, a host:port; the caller closes it. The target need
// not be up: while it is not, connections are accepted and closed at once. What goes wrong later is
// told to report, from any goroutine.
func New(target string, report func(error)) (*Proxy, error) {
	p := &Proxy{report: report, target: target, conns: make(map[net.Conn]struct{}), flow: make(chan struct{})}
	close(p.flow)
	var err error
	for range ports.Tries {
		if p.port, err = ports.Free(); err != nil {
			break
		}
		if err = p.listen(); err == nil {
			return p, nil
		}
	}
	return nil, fmt.Errorf("tcpproxy: starting a proxy for %s: %w", target, err)
}

// Close cuts every connection for good and returns once all is gone.
func (p *Proxy) Close() {
	p.Cut()
	p.wg.Wait()
}

// Addr returns the proxy's host:port.
func (p *Proxy) Addr() string { return ports.Address(p.port) }

// Cut closes every connection and refuses new ones until Heal: a server that is down.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener == nil {
		return
	}
	p.cancel()
	p.close(p.listener)
	p.listener = nil
	p.closeAll()
}

// Drop closes every connection and goes on accepting new ones: a network that hiccups.
func (p *Proxy) Drop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closeAll()
}

// Blackhole lets connections live, and new ones be made, but passes nothing on in either direction
// until Heal: a broken network that tells nobody. What is sent meanwhile is delivered after
// Heal, as TCP would, on those connections that are still there.
func (p *Proxy) Blackhole() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.flow:
		p.flow = make(chan struct{})
	default:
	}
}

// Delay adds d to the way of every byte in each direction, from now on. Zero ends it.
func (p *Proxy) Delay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
}

// Heal ends Cut, Blackhole and Delay. The proxy listens on the same port as before.
func (p *Proxy) Heal() {
	p.mu.Lock()
	p.delay = 0
	select {
	case <-p.flow:
	default:
		close(p.flow)
	}
	cut := p.listener == nil
	p.mu.Unlock()
	if !cut {
		return
	}
	if err := poll.Until(healTimeout, p.listen); err != nil {
		p.report(fmt.Errorf("tcpproxy: healing the proxy for %s: %w", p.target, err))
	}
}

// Conns returns how many clients are connected.
func (p *Proxy) Conns() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns) / 2
}

func (p *Proxy) listen() error {
	l, err := net.Listen("tcp", p.Addr())
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.listener = l
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	p.wg.Go(func() { p.accept(ctx, l) })
	return nil
}

func (p *Proxy) accept(ctx context.Context, l net.Listener) {
	for {
		client, err := l.Accept()
		if err != nil {
			if !errors.Is(err, net.ErrClosed) {
				p.report(fmt.Errorf("tcpproxy: for %s: %w", p.target, err))
			}
			return
		}
		p.wg.Go(func() { p.serve(ctx, client) })
	}
}

// serve forwards between one client and the target until either closes, or ctx ends.
func (p *Proxy) serve(ctx context.Context, client net.Conn) {
	var d net.Dialer
	target, err := d.DialContext(ctx, "tcp", p.target)
	if err != nil {
		p.close(client)
		return
	}
	if !p.add(ctx, client, target) {
		p.close(client)
		p.close(target)
		return
	}
	ctx, end := context.WithCancel(ctx)
	defer end()
	var both sync.WaitGroup
	both.Go(func() { p.forward(ctx, end, client, target) })
	both.Go(func() { p.forward(ctx, end, target, client) })
	<-ctx.Done()
	p.remove(client, target)
	both.Wait()
}

// forward passes bytes from one connection to another until one of them fails or ctx ends, and
// then ends ctx.
func (p *Proxy) forward(ctx context.Context, end context.CancelFunc, from, to net.Conn) {
	type chunk struct {
		data []byte
		at   time.Time
	}
	queue := make(chan chunk, proxyQueue)
	var reader sync.WaitGroup
	defer func() {
		end()
		reader.Wait()
	}()
	reader.Go(func() {
		defer close(queue)
		for {
			buf := make([]byte, proxyChunk)
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
		if p.hold(ctx, c.at) != nil {
			break
		}
		if _, err := to.Write(c.data); err != nil {
			break
		}
	}
}

// hold blocks until a chunk that came in at this time may pass.
func (p *Proxy) hold(ctx context.Context, at time.Time) error {
	p.mu.Lock()
	delay := p.delay
	p.mu.Unlock()
	if wait := time.Until(at.Add(delay)); delay > 0 && wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	p.mu.Lock()
	flow := p.flow
	p.mu.Unlock()
	select {
	case <-flow:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// add registers a pair of connections; it fails when the proxy was cut meanwhile.
func (p *Proxy) add(ctx context.Context, conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if ctx.Err() != nil {
		return false
	}
	for _, c := range conns {
		p.conns[c] = struct{}{}
	}
	return true
}

func (p *Proxy) remove(conns ...net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		delete(p.conns, c)
		p.close(c)
	}
}

func (p *Proxy) closeAll() {
	for c := range p.conns {
		p.close(c)
	}
	clear(p.conns)
}

func (p *Proxy) close(c io.Closer) {
	if err := c.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		p.report(fmt.Errorf("tcpproxy: for %s: closing: %w", p.target, err))
	}
}
