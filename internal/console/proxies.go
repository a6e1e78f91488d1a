package console

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// proxies are the networks of proxies before the console, whose X-Forwarded-For counts.
type proxies []netip.Prefix

// client returns the origin of a request: the address of the connection. If that is a known proxy, it is the last
// address in X-Forwarded-For; if that is a known proxy too, the address before it, and so on. Addresses that a client
// wrote itself come before the proxies' ones, and do not count.
func (p proxies) client(r *http.Request) string {
	at, ok := parseAddress(r.RemoteAddr)
	if !ok {
		return r.RemoteAddr
	}
	said := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
	for _, text := range slices.Backward(said) {
		next, ok := parseAddress(strings.TrimSpace(text))
		if !ok || !p.contain(at) {
			break
		}
		at = next
	}
	return at.String()
}

func (p proxies) contain(at netip.Addr) bool {
	return slices.ContainsFunc(p, func(network netip.Prefix) bool { return network.Contains(at) })
}

// parseAddress reads an address, with a port or without.
func parseAddress(text string) (netip.Addr, bool) {
	if host, _, err := net.SplitHostPort(text); err == nil {
		text = host
	}
	at, err := netip.ParseAddr(strings.Trim(text, "[]"))
	return at.Unmap().WithZone(""), err == nil
}
