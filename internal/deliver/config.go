package deliver

import (
	"crypto/x509"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/timerd-io/timerd/keys"
)

// Defaults of an endpoint.
const (
	DefaultTimeout     = 15 * time.Second
	DefaultConcurrency = 64
	DefaultExpire      = 72 * time.Hour
)

// Body is the content of a call.
type Body string

// The contents of a call.
const (
	BodyEvent Body = "event" // the CloudEvent, in structured JSON
	BodyData  Body = "data"  // the payload alone
)

// DefaultGroup is the group of a file that names none.
const DefaultGroup = keys.DeliverGroup

// Config is a file of endpoints.
type Config struct {
	// File identifies the file, and orders it among others.
	File File
	// Group names the processes that share the work.
	Group string
	// Start is the first event of a new group.
	Start     Start
	Endpoints []*Endpoint // the first one that matches a timer takes its events
}

// Start is the event of the stream with which a new group begins. The zero value is the oldest event.
type Start struct {
	Now bool      // the next event to fire
	At  time.Time // the first event stored then or later, unless zero
}

// Endpoint is the destination of a namespace's events. [Parse] makes it; it is never changed.
type Endpoint struct {
	Match keys.Namespace
	// URL is the endpoint's own; "" if each payload has it, at From.
	URL  string
	From []string
	// Schemes and Hosts are the allowed ones of a URL: without any, http and https, and any host. A host that begins
	// with *. stands for all hosts below it.
	Schemes, Hosts []string
	Timeout        time.Duration // of a call
	Concurrency    int           // calls at a time, for each host
	Rate           float64       // calls a second, for each host; 0: no limit
	Headers        http.Header
	Body           Body
	AllowPrivate   []netip.Prefix // allowed special addresses
	Deny           []netip.Prefix // refused addresses, even if allowed otherwise
	Ports          []uint16       // allowed ports of a URL; none: any, or 80 and 443 for URLs in payloads
	AnyPort        bool           // any port, also for URLs in payloads
	Expire         time.Duration  // the longest time from a delivery's first event, or replay, to a postponed call
	Authorities    *x509.CertPool // authorities for the hosts' certificates; nil: the system's

	signers []*standardwebhooks.Webhook
	secrets []string // must not appear in any text
	// secretHeaders are the headers with values from outside the file.
	secretHeaders []string
}

// Find returns the endpoint of a timer, or nil if no endpoint takes its events.
func (c *Config) Find(k keys.Key) *Endpoint {
	i := slices.IndexFunc(c.Endpoints, func(e *Endpoint) bool { return e.Match.Match(k) })
	if i < 0 {
		return nil
	}
	return c.Endpoints[i]
}

// Signs reports whether the endpoint has secrets.
func (e *Endpoint) Signs() bool { return len(e.signers) > 0 }

// Matches returns the endpoints' namespaces, in their order.
func (c *Config) Matches() keys.Namespaces {
	all := make(keys.Namespaces, len(c.Endpoints))
	for i, e := range c.Endpoints {
		all[i] = e.Match
	}
	return all
}

// oneHost reports whether all endpoints call the same host, and returns its limit of simultaneous calls.
func (c *Config) oneHost() (concurrency int, ok bool) {
	host := ""
	for _, e := range c.Endpoints {
		if e.URL == "" {
			return 0, false
		}
		to, err := e.check(e.URL)
		if err != nil || host != "" && to.host != host {
			return 0, false
		}
		host, concurrency = to.host, max(concurrency, e.Concurrency)
	}
	return concurrency, true
}

// mayUse reports whether a URL may have a port.
func (e *Endpoint) mayUse(port uint16) bool {
	ports := e.Ports
	if len(ports) == 0 && !e.AnyPort && e.URL == "" {
		ports = usualPorts()
	}
	return len(ports) == 0 || slices.Contains(ports, port)
}

// usualPorts returns the default ports for URLs in payloads.
func usualPorts() []uint16 { return []uint16{80, 443} }

// To returns the destination of the endpoint's deliveries: the host of its URL, or the place of URLs in payloads.
func (e *Endpoint) To() string {
	if e.URL == "" {
		return "{data." + strings.Join(e.From, ".") + "}"
	}
	to, err := e.check(e.URL)
	if err != nil {
		return "" // cannot happen: Parse has checked it
	}
	return to.url.Scheme + "://" + to.url.Host
}
