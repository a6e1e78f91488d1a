package config

import (
	"bytes"
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"unicode"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/notify"
)

// embedded is the NATS URL of the server within timerd, and its scheme where an address follows.
const embedded = "embedded"

// defaultNATSAddr is where the embedded server listens unless the URL says otherwise: where NATS clients look for one.
const defaultNATSAddr = "127.0.0.1:4222"

// Bounds of the names on NATS.
const (
	maxPrefixBytes = 128
	maxStreamBytes = 200 // JetStream allows 255; the suffixes and consumer names need room
)

// NATS says where NATS is and how to log in.
type NATS struct {
	Embedded bool   // the server runs within timerd
	Listen   string // of the embedded server, host:port; "" for the default address, if that is free
	DataDir  string // of the embedded server
	User     string // whom the embedded server lets in; "" for everybody, and with any other server
	Password string // of User
	URL      string // comma-separated, "" if embedded; not for logs: it may hold secrets
	Shown    string // the same without secrets
	Creds    string // file
	CA       string // file
	Cert     string // file, together with Key
	Key      string // file
	Streams  notify.Streams
}

// ListenAddr returns the address on which the embedded server listens.
func (c NATS) ListenAddr() string { return cmp.Or(c.Listen, defaultNATSAddr) }

// FromOutside returns how another process connects, also to a server that is embedded in timerd.
func (c NATS) FromOutside() NATS {
	if !c.Embedded {
		return c
	}
	address := c.ListenAddr()
	if strings.HasPrefix(address, ":") { // it listens on every address
		address = "127.0.0.1" + address
	}
	url := "nats://" + address
	return NATS{URL: url, Shown: url, User: c.User, Password: c.Password, Streams: c.Streams}
}

func parseNATS(env *environment, f *faults) NATS {
	c := NATS{
		URL:     env.NATS.URL,
		DataDir: env.DataDir,
		Creds:   env.NATS.Creds,
		CA:      env.NATS.CA,
		Cert:    env.NATS.Cert,
		Key:     env.NATS.Key,
		Streams: notify.Streams{Names: keys.Names{
			Prefix: parseSubjectPrefix(env.SubjectPrefix, f),
			Stream: parseStream(env.Stream, f),
		}},
	}
	if scheme, _, _ := strings.Cut(env.NATS.URL, "://"); scheme == embedded {
		c.Embedded, c.URL = true, ""
		c.parseEmbedded(env.NATS.URL, f)
		if c.DataDir == "" {
			f.addf("DATA_DIR", "is not set: the embedded NATS server needs a directory for its streams, such as /var/lib/timerd")
		}
		return c
	}
	c.URL, c.Shown = parseNATSURLs(env.NATS.URL, f)
	checkNATSFiles(c, f)
	return c
}

// parseEmbedded reads the URL of the embedded server: embedded, or embedded://[user:password@]host:port. Whoever reaches
// the server may read every event and set timers, so credentials are needed unless only this machine does.
func (c *NATS) parseEmbedded(value string, f *faults) {
	if value == embedded {
		c.Shown = value
		return
	}
	const want = "embedded, or embedded://[user:password@]host:port, such as embedded://127.0.0.1:4222"
	shown, ok := showURL(value)
	u, err := url.Parse(value)
	if !ok || err != nil || !IsHostPort(u.Host) || u.Path != "" || u.RawQuery != "" || u.Fragment != "" {
		f.addURL("NATS_URL", value, want, nil)
		return
	}
	c.Listen, c.Shown = u.Host, shown
	if u.User != nil {
		c.User = u.User.Username()
		c.Password, _ = u.User.Password()
		if c.User == "" || c.Password == "" {
			f.addURL("NATS_URL", value, want, errors.New("the user or the password is missing"))
		}
		return
	}
	if !isLoopback(u.Hostname()) {
		f.addURL("NATS_URL", value, fmt.Sprintf("embedded://user:password@%s, or a loopback address such as embedded://127.0.0.1:%s", u.Host, u.Port()),
			errors.New("other machines could read every event and set timers without a password"))
	}
}

// isLoopback tells whether only this machine reaches a host. A name may stand for any address.
func isLoopback(host string) bool {
	return host == "localhost" || net.ParseIP(host).IsLoopback()
}

// parseNATSURLs returns the URLs, each with a scheme, and what of them may be shown.
func parseNATSURLs(value string, f *faults) (urls, shown string) {
	const want = "nats://[user:password@]host:4222, tls://, ws:// or wss://, several separated by commas; or embedded"
	var all, allShown []string
	for entry := range strings.SplitSeq(value, ",") {
		entry = strings.TrimSpace(entry)
		if entry != "" && !strings.Contains(entry, "://") {
			entry = "nats://" + entry
		}
		u, ok := showURL(entry)
		if !ok {
			f.addURL("NATS_URL", entry, want, nil)
			return "", ""
		}
		scheme, _, _ := strings.Cut(u, "://")
		if !slices.Contains([]string{"nats", "tls", "ws", "wss"}, scheme) {
			f.addURL("NATS_URL", entry, want, fmt.Errorf("unknown scheme %q", scheme))
			return "", ""
		}
		if parsed, err := url.Parse(entry); err != nil || parsed.Hostname() == "" {
			f.addURL("NATS_URL", entry, want, errors.New("the host is missing"))
			return "", ""
		}
		all, allShown = append(all, entry), append(allShown, u)
	}
	websocket := func(s string) bool { return strings.HasPrefix(s, "ws") }
	if slices.ContainsFunc(all, websocket) && slices.ContainsFunc(all, func(s string) bool { return !websocket(s) }) {
		f.add("NATS_URL", strings.Join(allShown, ","), "either ws:// and wss:// URLs or others, not both")
	}
	return strings.Join(all, ","), strings.Join(allShown, ",")
}

// checkNATSFiles reports files that cannot be used. NATS would tell only at the
// first connect, and some of them one by one.
func checkNATSFiles(c NATS, f *faults) {
	if c.Creds != "" {
		creds, err := os.ReadFile(c.Creds)
		if err != nil {
			f.addf("NATS_CREDS", "%w: want a readable file with NATS credentials", err)
		} else if !bytes.Contains(creds, []byte("BEGIN NATS USER JWT")) || !bytes.Contains(creds, []byte("NKEY SEED")) {
			f.addf("NATS_CREDS", "%s holds no NATS credentials: want a file with a user JWT and an NKEY seed, as nsc writes it", c.Creds)
		}
	}
	if c.CA != "" {
		pem, err := os.ReadFile(c.CA)
		if err != nil {
			f.addf("NATS_CA", "%w: want a readable PEM file", err)
		} else if !x509.NewCertPool().AppendCertsFromPEM(pem) {
			f.addf("NATS_CA", "%s holds no certificate: want certificate authorities in PEM", c.CA)
		}
	}
	switch {
	case c.Cert == "" && c.Key == "":
	case c.Key == "":
		f.addf("NATS_KEY", "is not set: the certificate %s of TIMERD_NATS_CERT needs its private key", c.Cert)
	case c.Cert == "":
		f.addf("NATS_CERT", "is not set: the private key of TIMERD_NATS_KEY needs its certificate")
	default:
		if _, err := tls.LoadX509KeyPair(c.Cert, c.Key); err != nil {
			f.addf("NATS_CERT", "%s with TIMERD_NATS_KEY=%s: %w", c.Cert, c.Key, err)
		}
	}
}

func parseSubjectPrefix(value string, f *faults) string {
	valid := value != "" && len(value) <= maxPrefixBytes
	for token := range strings.SplitSeq(value, ".") {
		valid = valid && token != "" && keys.EncodeToken(token) == token
	}
	if !valid {
		f.add("SUBJECT_PREFIX", value, fmt.Sprintf("tokens of A-Z a-z 0-9 _ - joined by dots, at most %d bytes, such as timers or prod.timers", maxPrefixBytes))
	}
	return value
}

func parseStream(value string, f *faults) string {
	bad := func(r rune) bool {
		return strings.ContainsRune(`.*>/\`, r) || unicode.IsSpace(r) || !unicode.IsPrint(r)
	}
	if value == "" || len(value) > maxStreamBytes || strings.ContainsFunc(value, bad) {
		f.add("STREAM", value, fmt.Sprintf(`a JetStream stream name without white space or . * > / \, at most %d bytes, such as TIMERS`, maxStreamBytes))
	}
	return value
}
