package deliver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"

	"code.dny.dev/ssrf"
)

// errDenied means that an endpoint's own list refuses an address.
var errDenied = errors.New("denied address")

// guard decides which addresses an endpoint may call.
type guard struct {
	special *ssrf.Guardian // refuses addresses that are not public, unless the endpoint allows them
	denied  []netip.Prefix // refused whatever else is allowed
}

func newGuard(e *Endpoint) guard {
	var v4, v6 []netip.Prefix
	for _, p := range e.AllowPrivate {
		if p.Addr().Is4() {
			v4 = append(v4, p)
		} else {
			v6 = append(v6, p)
		}
	}
	return guard{ssrf.New(ssrf.WithAnyPort(), ssrf.WithAllowedV4Prefixes(v4...), ssrf.WithAllowedV6Prefixes(v6...)),
		e.Deny}
}

// refuses returns the reason why an address must not be called, nil if it may be called. isRefused reports true for the
// error.
func (g guard) refuses(addr netip.Addr) error {
	addr = addr.Unmap()
	if slices.ContainsFunc(g.denied, func(p netip.Prefix) bool { return p.Contains(addr) }) {
		return fmt.Errorf("%w: %s", errDenied, addr)
	}
	return g.special.SafeAddr(addr)
}

// control checks a connection when it is made, with the final address.
func (g guard) control(network, address string, c syscall.RawConn) error {
	at, err := netip.ParseAddrPort(address)
	if err == nil {
		err = g.refuses(at.Addr())
	}
	if err != nil {
		return err
	}
	return g.special.Safe(network, address, c)
}

// isRefused reports whether an error means that an address must not be called.
func isRefused(err error) bool {
	return errors.Is(err, ssrf.ErrProhibitedIP) || errors.Is(err, ssrf.ErrProhibitedNetwork) ||
		errors.Is(err, ssrf.ErrInvalidHostPort) ||
		errors.Is(err, errDenied)
}

// guarded connects to addresses that an endpoint may call.
type guarded struct {
	guard  guard
	dialer *net.Dialer // with the guard's control
}

// DialContext connects to a host. It returns an error about refused addresses only if all addresses of the host are
// refused. The dialer alone would return its first error, although another address may be allowed and only slow to
// answer.
func (d guarded) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	conn, refused := d.dialer.DialContext(ctx, network, address)
	if refused == nil || !isRefused(refused) {
		return conn, refused
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, refused
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return nil, refused
	}
	all, err := d.dialer.Resolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, err
	}
	var fault error
	for _, addr := range all {
		if d.guard.refuses(addr) != nil {
			continue
		}
		conn, err := d.dialer.DialContext(ctx, network, net.JoinHostPort(addr.Unmap().String(), port))
		if err == nil {
			return conn, nil
		}
		if fault == nil {
			fault = err
		}
	}
	if fault == nil {
		return nil, refused
	}
	return nil, fault
}
