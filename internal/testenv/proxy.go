package testenv

import (
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/timerd-io/timerd/internal/testenv/lab"
)

// Proxy forwards TCP connections to a target and misbehaves on request.
type Proxy = lab.Proxy

// NewProxy starts a proxy for the server at target, a host:port, and stops it when t ends. The
// target need not be up: while it is not, connections are accepted and closed at once.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	p, err := lab.NewProxy(target, func(err error) { t.Error(err) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// Through has a connection of NATSServer.Conn or NATSServer.JetStream go through a proxy for that server.
func Through(p *Proxy) nats.Option {
	return func(o *nats.Options) error {
		o.Servers = []string{"nats://" + p.Addr()}
		return nil
	}
}
