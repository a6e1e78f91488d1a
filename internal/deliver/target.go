package deliver

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/timerd-io/timerd/event"
)

// maxURLBytes limits a URL: no server takes more.
const maxURLBytes = 8 << 10

// target is the destination of a delivery.
type target struct {
	url  *url.URL
	host string // host:port in lower case, the key of circuits and limits
}

// target returns an event's destination. The error names the URL's fault, and quotes nothing else of the payload; a
// retry does not help.
func (e *Endpoint) target(ev event.Event) (target, error) {
	if e.URL != "" {
		return e.check(e.URL)
	}
	text, err := textAt(ev, e.From)
	if err != nil {
		return target{}, err
	}
	return e.check(text)
}

// textAt returns the text at a place in a payload.
func textAt(ev event.Event, path []string) (string, error) {
	place := "data." + strings.Join(path, ".")
	if ev.Data == nil {
		return "", fmt.Errorf("no URL: the payload is %s", ev.Status)
	}
	raw := json.RawMessage(ev.Data)
	for _, name := range path {
		var object map[string]json.RawMessage
		if err := json.Unmarshal(raw, &object); err != nil {
			return "", fmt.Errorf("no URL: the payload has no %s", place)
		}
		raw = object[name]
	}
	var text *string
	if len(raw) == 0 || json.Unmarshal(raw, &text) != nil || text == nil {
		return "", fmt.Errorf("no URL: the payload has no text %s", place)
	}
	return *text, nil
}

// check parses a URL, and returns an error if the endpoint may not call it.
func (e *Endpoint) check(text string) (target, error) {
	fail := func(why string, args ...any) (target, error) { return target{}, fmt.Errorf("bad URL: "+why, args...) }
	if len(text) <= maxURLBytes { // a longer one is refused below
		text = encodeURL(text)
	}
	if len(text) > maxURLBytes {
		return fail("it has %d bytes, at most %d are allowed", len(text), maxURLBytes)
	}
	u, err := url.Parse(text)
	if err != nil {
		return fail("it is malformed: %w", shortError(urlError(err)))
	}
	if u.Opaque != "" || u.Host == "" {
		return fail("want http://host/path or https://host/path")
	}
	if !slices.Contains(e.Schemes, u.Scheme) {
		return fail("its scheme is %.20q, allowed is %s", u.Scheme, strings.Join(e.Schemes, " or "))
	}
	if u.User != nil {
		return fail("it holds a user, which would end up in logs: use headers for credentials")
	}
	host, ok := normalHost(u.Hostname())
	if !ok {
		return fail("%.80q is not a host; names outside ASCII must be in Punycode (xn--…)", u.Hostname())
	}
	usual := map[string]string{"http": "80", "https": "443"}[u.Scheme]
	n, err := strconv.ParseUint(cmp.Or(u.Port(), usual), 10, 16)
	if err != nil || n == 0 {
		return fail("its port is not from 1 to 65535")
	}
	if !e.allows(host) {
		return fail("the host %.80q is not among the allowed ones", host)
	}
	if !e.mayUse(uint16(n)) {
		return fail("its port %d is not in ports:", n)
	}
	port := strconv.FormatUint(n, 10)
	u.Fragment, u.RawFragment = "", ""
	u.Host = net.JoinHostPort(host, port)
	to := target{url: u, host: u.Host}
	if port == usual {
		u.Host = strings.TrimSuffix(u.Host, ":"+port)
	}
	return to, nil
}

// encodeURL returns a URL as a browser would send it. It removes white space at both ends, tabs and line breaks within,
// and the fragment. In the path and the query of an HTTP URL it percent-encodes blanks, control characters, bytes
// outside ASCII, and characters that are invalid in a URL; encoded bytes stay. Unlike a browser, it turns a % that
// begins no encoded byte into %25: most servers refuse a bare one. A text that is no URL stays invalid.
func encodeURL(text string) string {
	text = strings.TrimFunc(text, func(r rune) bool { return r <= ' ' || unicode.IsSpace(r) || r == '\ufeff' })
	text = strings.NewReplacer("\t", "", "\n", "", "\r", "").Replace(text)
	text, _, _ = strings.Cut(text, "#")
	before, query, hasQuery := strings.Cut(text, "?")
	before = strings.ReplaceAll(before, `\`, "/")
	scheme, rest, ok := strings.Cut(before, "://")
	if !ok {
		return text
	}
	path := ""
	if i := strings.IndexByte(rest, '/'); i >= 0 {
		rest, path = rest[:i], rest[i:]
	}
	text = scheme + "://" + rest + percentEncode(path, "\"<>^`{|}")
	if hasQuery {
		text += "?" + percentEncode(query, "\"'<>")
	}
	return text
}

// percentEncode encodes each byte other than printable ASCII, each special one, and each % that begins no encoded byte.
func percentEncode(text, special string) string {
	const hexDigits = "0123456789ABCDEFabcdef"
	encoded := make([]byte, 0, len(text))
	for i, c := range []byte(text) {
		stray := c == '%' && (i+2 >= len(text) || !strings.Contains(hexDigits, text[i+1:i+2]) ||
			!strings.Contains(hexDigits, text[i+2:i+3]))
		if c <= ' ' || c >= 0x7f || stray || strings.IndexByte(special, c) >= 0 {
			encoded = fmt.Appendf(encoded, "%%%02X", c)
		} else {
			encoded = append(encoded, c)
		}
	}
	return string(encoded)
}

// allows reports whether a host, in normal form, is allowed.
func (e *Endpoint) allows(host string) bool {
	return len(e.Hosts) == 0 || slices.ContainsFunc(e.Hosts, func(pattern string) bool {
		if below, ok := strings.CutPrefix(pattern, "*"); ok {
			return strings.HasSuffix(host, below)
		}
		return host == pattern
	})
}

// maxHostBytes is DNS's limit.
const maxHostBytes = 253

// normalHost returns the normal form of a host: in lower case, without the last dot, addresses in netip's form. ok is
// false for an invalid host. Names outside ASCII must be in Punycode. A host that ends in a number, such as 127.1,
// 0x7f.1 and 2130706433, is an address to some proxies, and never a name.
func normalHost(host string) (string, bool) {
	if addr, err := netip.ParseAddr(host); err == nil {
		return addr.Unmap().String(), addr.Zone() == ""
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789-._"
	if host == "" || len(host) > maxHostBytes || strings.Trim(host, letters) != "" || strings.Contains(host, "..") ||
		host[0] == '.' {
		return "", false
	}
	last := host[strings.LastIndexByte(host, '.')+1:]
	digits, hex := strings.CutPrefix(last, "0x")
	if strings.Trim(last, "0123456789") == "" || hex && strings.Trim(digits, "0123456789abcdef") == "" {
		return "", false
	}
	return host, true
}

// maxShortError limits an error's quotation of a URL from a payload.
const maxShortError = 80

func shortError(err error) error {
	if text := err.Error(); len(text) > maxShortError {
		return errors.New(strings.ToValidUTF8(text[:maxShortError], "") + "…")
	}
	return err
}
