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

// Body says what an endpoint is sent.
type Body string

// What an endpoint may be sent.
const (
	BodyEvent Body = "event" // the CloudEvent, in structured JSON
	BodyData  Body = "data"  // the payload alone
)

// DefaultGroup is the group of a file that names none.
const DefaultGroup = keys.DeliverGroup

// Config is what a file says.
type Config struct {
	// File says which file it is, and which of two is the newer one.
	File File
	// Group names the processes that share the work.
	Group string
	// Start says with which events a group begins that there has not been yet.
	Start     Start
	Endpoints []*Endpoint // the first one that matches a timer takes its events
}

// Start says with which events of the stream a new group begins. The zero value is the oldest one.
type Start struct {
	Now bool      // with what fires from then on
	At  time.Time // with what was stored then or later, unless it is the zero time
}

// Endpoint is where the events of a namespace go. [Parse] makes it; nobody changes it after.
type Endpoint struct {
	Match keys.Namespace
	// URL is the endpoint's own; "" if it is found in each payload under From.
	URL  string
	From []string
	// Schemes and Hosts are what a URL may have: http and https, and any host if there are none. A host that begins with
	// *. stands for all below it.
	Schemes, Hosts []string
	Timeout        time.Duration // of a call
	Concurrency    int           // calls at a time, for each host
	Rate           float64       // calls a second, for each host; 0: no limit
	Headers        http.Header
	Body           Body
	AllowPrivate   []netip.Prefix // special addresses that may be called
	Deny           []netip.Prefix // addresses that may not, even so
	Ports          []uint16       // that a URL may have; none: any, or 80 and 443 where URLs are those of payloads
	AnyPort        bool           // any, also where URLs are those of payloads
	Expire         time.Duration  // how long after its first event, or its replay, a delivery may be put off
	Authorities    *x509.CertPool // who may sign the certificates of hosts; nil: those of the system

	signers []*standardwebhooks.Webhook
	secrets []string // what no text may show
	// secretHeaders are the headers whose values are kept elsewhere.
	secretHeaders []string
}

// Find returns the endpoint of a timer, nil if there is none.
func (c *Config) Find(k keys.Key) *Endpoint {
	i := slices.IndexFunc(c.Endpoints, func(e *Endpoint) bool { return e.Match.Match(k) })
	if i < 0 {
		return nil
	}
	return c.Endpoints[i]
}

// Signs tells whether the endpoint has secrets.
func (e *Endpoint) Signs() bool { return len(e.signers) > 0 }

// Matches returns what the endpoints match, in their order.
func (c *Config) Matches() keys.Namespaces {
	all := make(keys.Namespaces, len(c.Endpoints))
	for i, e := range c.Endpoints {
		all[i] = e.Match
	}
	return all
}

// oneHost tells whether all endpoints call one and the same host, and how often at a time.
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

// mayUse tells whether a URL may have a port.
func (e *Endpoint) mayUse(port uint16) bool {
	ports := e.Ports
	if len(ports) == 0 && !e.AnyPort && e.URL == "" {
		ports = usualPorts()
	}
	return len(ports) == 0 || slices.Contains(ports, port)
}

// usualPorts returns those that a stranger's URL may have unless the file names others.
func usualPorts() []uint16 { return []uint16{80, 443} }

// To says where the endpoint's deliveries go: the host of its URL, or the place of URLs in payloads.
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
