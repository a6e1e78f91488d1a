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

// Config is what a file says.
type Config struct {
	Endpoints []*Endpoint // the first one that matches a timer takes its events
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
	Expire         time.Duration  // how long after its first event a delivery may be held back
	Authorities    *x509.CertPool // who may sign the certificates of hosts; nil: those of the system

	signers []*standardwebhooks.Webhook
	secrets []string // what no text may show
	owner   keys.Namespace
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

// Consumers returns the namespaces whose events are consumed, each by a durable consumer of its own: those endpoints'
// that no other endpoint's covers.
func (c *Config) Consumers() keys.Namespaces {
	var all keys.Namespaces
	for _, e := range c.Endpoints {
		if !slices.Contains(all, e.owner) {
			all = append(all, e.owner)
		}
	}
	return all
}

// assign has each endpoint consumed under the widest namespace that covers its own; of several, the first one. So every
// event of an endpoint reaches that consumer, and of namespaces that overlap only one calls.
func (c *Config) assign() {
	for _, e := range c.Endpoints {
		e.owner = e.Match
		for _, other := range c.Endpoints {
			if other.Match != e.owner && other.Match.Covers(e.owner) {
				e.owner = other.Match
			}
		}
	}
}

// only returns the one endpoint that a consumer's events go to if it calls a single host, nil if there may be several.
func (c *Config) only(consumer keys.Namespace) *Endpoint {
	var found *Endpoint
	for _, e := range c.Endpoints {
		if e.owner != consumer {
			continue
		}
		if found != nil || e.URL == "" {
			return nil
		}
		found = e
	}
	return found
}

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
