package config

import (
	"crypto/pbkdf2"
	"crypto/sha256"
	"crypto/subtle"
	"net"
	"net/netip"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Console has the settings of timerd's web page.
type Console struct {
	Addr     string         // host:port; "" means that there is no console
	Password Password       // the browser asks for it; may be unset if Addr is a loopback address
	Actions  bool           // whether the page can change timers
	Hosts    []string       // further host names of the page: in lower case, some with a port
	Proxies  []netip.Prefix // networks of proxies whose X-Forwarded-For names a request's origin
}

// Password is a password to compare with. It keeps only a hash, so that nothing can show the password.
type Password struct {
	sum [sha256.Size]byte
	set bool
}

// NewPassword returns a password; an empty text is none.
func NewPassword(text string) Password {
	return Password{sha256.Sum256([]byte(text)), text != ""}
}

// IsSet reports whether a password is set.
func (p Password) IsSet() bool { return p.set }

// Matches reports whether given is the password, in a time that depends only on the length of given. An unset password
// matches nothing.
func (p Password) Matches(given string) bool {
	sum := sha256.Sum256([]byte(given))
	return subtle.ConstantTimeCompare(sum[:], p.sum[:]) == 1 && p.set
}

// keyRounds makes guessing the password slow for somebody with a key, or with a text signed by one. It costs some 20 ms
// at the start.
const keyRounds = 100_000

// Key derives a key for a purpose: the same password gives the same key.
func (p Password) Key(purpose string) []byte {
	key, err := pbkdf2.Key(sha256.New, string(p.sum[:]), []byte(purpose), keyRounds, sha256.Size)
	if err != nil {
		panic(err) // cannot happen: the constants are long enough
	}
	return key
}

// String shows only whether a password is set.
func (p Password) String() string {
	if p.set {
		return "(set)"
	}
	return "(none)"
}

// GoString is String.
func (p Password) GoString() string { return p.String() }

// parseConsole reads the settings of the console.
func parseConsole(env *environment, f *faults) Console {
	c := Console{Password: NewPassword(env.Console.Password),
		Actions: parseSwitch("CONSOLE_ACTIONS", env.Console.Actions, f)}
	if !strings.EqualFold(env.Console.Addr, "off") {
		c.Addr = env.Console.Addr
	}
	if strings.ContainsFunc(env.Console.Password, func(r rune) bool { return unicode.IsControl(r) || r == '\ufeff' }) {
		f.addf("CONSOLE_PASSWORD",
			"holds a character that nobody can type, such as a line end or a byte order mark: want a password of one "+
				"line")
	}
	if isQuoted(env.Console.Password) {
		f.addf("CONSOLE_PASSWORD", "begins and ends with a quote: want a password without")
	}
	switch {
	case c.Addr == "":
		if env.Console.Addr == "" {
			f.add("CONSOLE_ADDR", "", "host:port, such as 127.0.0.1:8081, or off")
		}
	case !IsHostPort(c.Addr):
		f.add("CONSOLE_ADDR", c.Addr, "host:port, such as 127.0.0.1:8081, or off")
	case !c.Password.IsSet() && !isLoopbackAddr(c.Addr):
		f.addf("CONSOLE_PASSWORD",
			"is not set, and other machines reach TIMERD_CONSOLE_ADDR=%q: want a password, or a loopback address "+
				"such as 127.0.0.1:8081", c.Addr)
	}
	for host := range strings.SplitSeq(env.Console.Hosts, ",") {
		host = strings.ToLower(strings.TrimSpace(host))
		switch {
		case host == "":
		case !isHost(host):
			f.add("CONSOLE_HOSTS", host,
				"host names or addresses, separated by commas, such as timerd.example.com; without https:// and path")
		default:
			c.Hosts = append(c.Hosts, host)
		}
	}
	c.Proxies = parseNetworks("CONSOLE_PROXIES", env.Console.Proxies, f)
	return c
}

// parseNetworks reads networks and single addresses, separated by commas.
func parseNetworks(name, text string, f *faults) (networks []netip.Prefix) {
	for part := range strings.SplitSeq(text, ",") {
		part = strings.TrimSpace(part)
		if part == "" {
			continue
		}
		network, err := netip.ParsePrefix(part)
		if addr, single := netip.ParseAddr(part); single == nil {
			network, err = netip.PrefixFrom(addr.Unmap(), addr.Unmap().BitLen()), nil
		}
		if err != nil {
			f.add(name, part, "networks or addresses, separated by commas, such as 10.0.0.0/8,192.0.2.7,fd00::/8")
			continue
		}
		networks = append(networks, network.Masked())
	}
	return networks
}

// isHostByte reports whether browsers put a byte into the Host header: other letters are encoded as xn--….
func isHostByte(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("-_.:[]", c) >= 0
}

// isHost reports whether a text can stand in the Host header: a name or an address, perhaps with a port.
func isHost(host string) bool {
	if strings.ContainsFunc(host, func(r rune) bool { return r >= utf8.RuneSelf || !isHostByte(byte(r)) }) {
		return false
	}
	if name, _, err := net.SplitHostPort(host); err == nil {
		return name != "" && IsHostPort(host)
	}
	if strings.HasPrefix(host, "[") {
		_, err := netip.ParseAddr(strings.Trim(host, "[]"))
		return err == nil
	}
	return !strings.Contains(host, ":")
}

// isLoopbackAddr reports whether only this machine reaches host:port.
func isLoopbackAddr(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	return err == nil && isLoopback(host)
}
