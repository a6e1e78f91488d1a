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
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/internal/textfile"
	"github.com/timerd-io/timerd/keys"
)

// embedded is the NATS URL of the server within timerd, and its scheme where an address follows.
const embedded = "embedded"

// defaultNATSAddr is the default address of the embedded server: NATS clients look there first.
const defaultNATSAddr = "127.0.0.1:4222"

// Limits of names on NATS.
const (
	maxPrefixBytes = 128
	maxStreamBytes = 200 // JetStream allows 255; suffixes and consumer names take some
)

// Limits of the streams that timerd creates.
const (
	minStreamAge      = 2 * time.Minute // JetStream's: the duplicate window
	maxStreamAge      = 10 * 365 * 24 * time.Hour
	minStreamSize     = 1 << 20
	maxStreamReplicas = 5 // JetStream's
)

// NATS has the address of NATS and the credentials.
type NATS struct {
	Embedded bool   // the server runs within timerd
	Listen   string // of the embedded server, host:port; "" for the default address, if that is free
	DataDir  string // of the embedded server
	User     string // the user of the embedded server, "" for everybody; or a context's user
	Password string // of User
	URL      string // comma-separated, "" if embedded; not for logs: it may hold secrets
	Shown    string // the same without secrets
	Chosen   bool   // a URL or a context is set, in place of the default
	Creds    string // file
	CA       string // file
	Cert     string // file, together with Key
	Key      string // file
	Streams  streams.Config

	// Context is TIMERD_NATS_CONTEXT, and ContextFile is its file: it replaces all of the above except the settings of
	// the embedded server. The following comes from a context alone.
	Context, ContextFile string
	Auth                 Auth
	TLSFirst             bool
	Domain               string // of JetStream; "" for that of the server
	APIPrefix            string // of JetStream; "" for its own
	InboxPrefix          string // "" for _INBOX
}

// ListenAddr returns the address on which the embedded server listens.
func (c NATS) ListenAddr() string { return cmp.Or(c.Listen, defaultNATSAddr) }

// FromOutside returns the settings for another process to connect, also to the server embedded in timerd.
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

// files are the files for TLS.
func (c NATS) files() pemFiles {
	return pemFiles{server: "NATS", context: c.ContextFile, ca: c.CA, cert: c.Cert, key: c.Key}
}

// Authorities reads the certificate authorities of CA, which must be set. Each connection reads them again.
func (c NATS) Authorities() (*x509.CertPool, error) { return c.files().authorities() }

// ClientCertificate reads the certificate of Cert and Key, which must be set. Each connection reads it again.
func (c NATS) ClientCertificate() (tls.Certificate, error) {
	pair, err := c.files().clientCertificate(nil)
	if err != nil {
		return tls.Certificate{}, err
	}
	return *pair, nil
}

func parseNATS(env *environment, f *faults) NATS {
	c := NATS{
		URL:     env.NATS.URL,
		DataDir: env.DataDir,
		Creds:   env.NATS.Creds,
		CA:      env.NATS.CA,
		Cert:    env.NATS.Cert,
		Key:     env.NATS.Key,
		Streams: parseStreams(env, f),
	}
	if env.NATS.Context != "" {
		c = NATS{DataDir: c.DataDir, Streams: c.Streams}
		c.parseContext(env.NATS.Context, f)
		c.files().check(f)
		return c
	}
	if scheme, _, _ := strings.Cut(env.NATS.URL, "://"); scheme == embedded {
		c.Embedded, c.URL = true, ""
		c.parseEmbedded(env.NATS.URL, f)
		switch {
		case c.DataDir == "":
			f.addf("DATA_DIR", "is not set: the embedded NATS server needs a directory for its streams, such as "+
				"/var/lib/timerd")
		case isQuoted(c.DataDir):
			f.add("DATA_DIR", c.DataDir, "a directory, such as /var/lib/timerd")
		}
		if c.Streams.Replicas > 1 {
			f.add("STREAM_REPLICAS", env.StreamReplicas, "1, because the embedded NATS server is alone")
		}
		return c
	}
	c.URL, c.Shown = parseNATSURLs("NATS_URL", env.NATS.URL, f)
	checkCreds("NATS_CREDS", c.Creds, f)
	c.files().check(f)
	return c
}

// parseEmbedded reads the URL of the embedded server: embedded, or embedded://[user:password@]host:port. Anybody who
// reaches the server can read every event and set timers, so it needs credentials unless it is on a loopback address.
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
		f.addURL("NATS_URL", value,
			fmt.Sprintf("embedded://user:password@%s, or a loopback address such as embedded://127.0.0.1:%s", u.Host,
				u.Port()),
			errors.New("other machines could read every event and set timers without a password"))
	}
}

// isLoopback reports whether only this machine reaches a host. A name may stand for any address.
func isLoopback(host string) bool {
	return host == "localhost" || net.ParseIP(host).IsLoopback()
}

// parseNATSURLs returns the URLs, each with a scheme, and a text of them without secrets. variable is for faults.
func parseNATSURLs(variable, value string, f *faults) (urls, shown string) {
	const want = "nats://[user:password@]host:4222, tls://, ws:// or wss://, several separated by commas; or embedded"
	var all, allShown []string
	for entry := range strings.SplitSeq(value, ",") {
		entry = strings.TrimSpace(entry)
		if entry != "" && !strings.Contains(entry, "://") {
			entry = "nats://" + entry
		}
		u, ok := showURL(entry)
		if !ok {
			f.addURL(variable, entry, want, nil)
			return "", ""
		}
		scheme, _, _ := strings.Cut(u, "://")
		if !slices.Contains([]string{"nats", "tls", "ws", "wss"}, scheme) {
			f.addURL(variable, entry, want, fmt.Errorf("unknown scheme %q", scheme))
			return "", ""
		}
		if parsed, err := url.Parse(entry); err != nil || parsed.Hostname() == "" {
			f.addURL(variable, entry, want, errors.New("the host is missing"))
			return "", ""
		}
		if err := checkHost(entry); err != nil {
			f.addURL(variable, entry, want, err)
			return "", ""
		}
		all, allShown = append(all, entry), append(allShown, u)
	}
	websocket := func(s string) bool { return strings.HasPrefix(s, "ws") }
	if slices.ContainsFunc(all, websocket) && slices.ContainsFunc(all, func(s string) bool { return !websocket(s) }) {
		f.add(variable, strings.Join(allShown, ","), "only ws:// and wss:// URLs, or only others, not both")
	}
	return strings.Join(all, ","), strings.Join(allShown, ",")
}

// checkCreds reports an unusable file of credentials as a fault of a variable. NATS would notice it only at the first
// connect.
func checkCreds(variable, file string, f *faults) {
	if file == "" {
		return
	}
	creds, err := textfile.Read(file)
	if err != nil {
		f.addf(variable, "%w: want a readable file with NATS credentials", err)
	} else if !bytes.Contains(creds, []byte("BEGIN NATS USER JWT")) || !bytes.Contains(creds, []byte("NKEY SEED")) {
		f.addf(variable, "%s holds no NATS credentials: want a file with a user JWT and an NKEY seed, as nsc writes it",
			file)
	}
}

// parseStreams reads the settings of the streams.
func parseStreams(env *environment, f *faults) streams.Config {
	return streams.Config{
		Names: keys.Names{
			Prefix: parseSubjectPrefix(env.SubjectPrefix, f),
			Stream: parseStream(env.Stream, f),
		},
		MaxAge: parseStreamMaxAge(env.StreamMaxAge, f),
		MaxBytes: parseNumber("STREAM_MAX_BYTES", env.StreamMaxBytes,
			func(n int64) bool { return n == 0 || n >= minStreamSize },
			fmt.Sprintf("a number of bytes from %d on, such as 20000000000, or 0 for no limit", minStreamSize), f),
		Replicas: int(parseNumber("STREAM_REPLICAS", env.StreamReplicas,
			func(n int64) bool { return n >= 1 && n <= maxStreamReplicas },
			fmt.Sprintf("a number from 1 to %d", maxStreamReplicas), f)),
	}
}

func parseSubjectPrefix(value string, f *faults) string {
	valid := value != "" && len(value) <= maxPrefixBytes
	for token := range strings.SplitSeq(value, ".") {
		valid = valid && token != "" && keys.EncodeToken(token) == token
	}
	if !valid {
		f.add("SUBJECT_PREFIX", value,
			fmt.Sprintf("tokens of A-Z a-z 0-9 _ - joined by dots, at most %d bytes, such as timers or prod.timers",
				maxPrefixBytes))
	}
	return value
}

func parseStream(value string, f *faults) string {
	bad := func(r rune) bool {
		return strings.ContainsRune(`.*>/\,;`+quotes, r) || unicode.IsSpace(r) || !unicode.IsPrint(r)
	}
	if value == "" || len(value) > maxStreamBytes || strings.ContainsFunc(value, bad) {
		f.add("STREAM", value,
			fmt.Sprintf("a JetStream stream name without white space, quotes or . * > / \\ , ;, at most %d bytes, "+
				"such as TIMERS", maxStreamBytes))
	}
	return value
}

// parseStreamMaxAge returns the greatest age; it is negative for no limit.
func parseStreamMaxAge(value string, f *faults) time.Duration {
	d, err := time.ParseDuration(value)
	switch {
	case err == nil && d == 0:
		return -1
	case err != nil || d < minStreamAge || d > maxStreamAge:
		f.add("STREAM_MAX_AGE", value, fmt.Sprintf("a duration from %v to 10 years, such as 168h, or 0 for ever",
			minStreamAge))
	}
	return d
}
