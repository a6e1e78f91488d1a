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

// client returns the address that a request comes from: that of the connection; or where that is a proxy's, what it says, and so on.
// What a client writes itself stands to the left of what proxies add, and does not count.
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
