package deliver

import (
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"go.yaml.in/yaml/v4"

	"github.com/timerd-io/timerd/internal/yamlfile"
	"github.com/timerd-io/timerd/keys"
)

// Bounds of what a file may say.
const (
	minTimeout     = 10 * time.Millisecond
	maxTimeout     = 5 * time.Minute
	maxConcurrency = 10_000
	minRate        = 1.0 / 3600 // calls a second
	maxRate        = 1e6
	minExpire      = time.Second
	maxExpire      = 10 * 365 * 24 * time.Hour
	minSecretBytes = 16
	minSecretWord  = 8 // of a header's value: a shorter one is no secret
)

// What secrets and header values begin with that are kept elsewhere.
const (
	fromVariable = "env:"
	fromFile     = "file:"
)

// fields returns the names of the fields that an endpoint may have.
func fields() []string {
	return []string{
		"match", "url", "schemes", "hosts", "secrets", "timeout", "concurrency", "rate", "headers", "body", "allow_private", "ca", "expire",
	}
}

// Parse reads a file of endpoints. variable looks an environment variable up, for secrets that are there. It returns
// all faults that the file has, in the order of their lines and without secrets; the configuration is valid only if
// there are none.
func Parse(text []byte, variable func(name string) (string, bool)) (*Config, yamlfile.Faults) {
	root, fault := yamlfile.Parse(text)
	if fault != nil {
		return nil, yamlfile.Faults{*fault}
	}
	f := file{variable: variable}
	if root == nil {
		f.faults.Add(0, "it is empty: want a list endpoints:")
		return nil, f.faults
	}
	f.read(root)
	f.faults.Sort()
	f.config.assign()
	return &f.config, f.faults
}

// file is a file that is being read.
type file struct {
	variable func(name string) (string, bool)
	config   Config
	faults   yamlfile.Faults
}

func (f *file) read(root *yaml.Node) {
	list := yamlfile.Only(root, "endpoints", &f.faults)
	switch {
	case list == nil:
		return
	case list.Kind != yaml.SequenceNode || len(list.Content) == 0:
		f.faults.Add(list.Line, "want a list endpoints: with at least one entry")
		return
	}
	for _, n := range list.Content {
		entry := yamlfile.Resolved(n)
		if entry.Kind != yaml.MappingNode {
			f.faults.Add(n.Line, "want an endpoint with match and url, got %s", yamlfile.KindOf(entry))
			continue
		}
		f.endpoint(n.Line, entry)
	}
}

// endpoint reads an entry.
func (f *file) endpoint(line int, n *yaml.Node) {
	e := &Endpoint{
		Schemes: []string{"http", "https"}, Timeout: DefaultTimeout, Concurrency: DefaultConcurrency, Body: BodyEvent, Expire: DefaultExpire,
	}
	before := len(f.faults)
	lines := yamlfile.Fields(n, fields(), &f.faults, func(name string, value *yaml.Node) []error { return f.field(e, name, value) })
	for _, name := range []string{"match", "url"} {
		if lines[name] == 0 {
			f.faults.Add(line, "%s is missing", name)
		}
	}
	if e.URL != "" && len(f.faults) == before {
		if _, err := e.check(e.URL); err != nil {
			f.faults.Add(lines["url"], "url: %v", err)
		}
	}
	for _, other := range f.config.Endpoints {
		if lines["match"] > 0 && other.Match.Covers(e.Match) {
			f.faults.Add(lines["match"], "match: %s is covered by %s, which is before it and takes its events: put it first", e.Match, other.Match)
			break
		}
	}
	f.config.Endpoints = append(f.config.Endpoints, e)
}

// field reads a field, and returns all that is wrong with it.
func (f *file) field(e *Endpoint, name string, value *yaml.Node) []error {
	switch name {
	case "schemes", "hosts", "secrets", "allow_private":
		return f.list(e, name, value)
	case "headers":
		return f.headers(e, value)
	}
	if value.Kind != yaml.ScalarNode || value.ShortTag() == "!!null" {
		return []error{fmt.Errorf("want one value, got %s", yamlfile.KindOf(value))}
	}
	if err := e.set(name, value.Value); err != nil {
		return []error{err}
	}
	return nil
}

// set takes in a field of one value.
func (e *Endpoint) set(name, text string) (err error) {
	switch name {
	case "match":
		e.Match, err = keys.ParseNamespace(text)
	case "url":
		e.URL, e.From, err = parseURL(text)
	case "timeout":
		e.Timeout, err = parseSpan(text, minTimeout, maxTimeout)
	case "expire":
		e.Expire, err = parseSpan(text, minExpire, maxExpire)
	case "concurrency":
		if e.Concurrency, err = strconv.Atoi(text); err != nil || e.Concurrency < 1 || e.Concurrency > maxConcurrency {
			err = fmt.Errorf("%.40q: want a number from 1 to %d", text, maxConcurrency)
		}
	case "rate":
		e.Rate, err = parseRate(text)
	case "body":
		if e.Body = Body(text); e.Body != BodyEvent && e.Body != BodyData {
			err = fmt.Errorf("%.40q: want %s or %s", text, BodyEvent, BodyData)
		}
	case "ca":
		e.Authorities, err = readAuthorities(text)
	}
	return err
}

// parseURL reads a fixed URL, or the place of one in the payload: {data.a.b}.
func parseURL(text string) (fixed string, from []string, err error) {
	inner, ok := strings.CutPrefix(text, "{data.")
	inner, closed := strings.CutSuffix(inner, "}")
	switch {
	case ok && closed && !strings.ContainsAny(inner, "{}"):
		from = strings.Split(inner, ".")
		if slices.Contains(from, "") {
			return "", nil, errors.New("want {data.NAME} or {data.NAME.NAME}, with no name empty")
		}
		return "", from, nil
	case strings.ContainsAny(text, "{}"):
		return "", nil, errors.New("want a URL, or {data.NAME} alone for one that is in the payload")
	case text == "":
		return "", nil, errors.New("want a URL, or {data.NAME}, got an empty text")
	}
	return text, nil, nil
}

func parseSpan(text string, least, most time.Duration) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d < least || d > most {
		return 0, fmt.Errorf("%.40q: want a duration from %v to %v, such as 15s", text, least, most)
	}
	return d, nil
}

// parseRate reads 100/s, 90/m or 1000/h, and returns calls a second.
func parseRate(text string) (float64, error) {
	number, unit, _ := strings.Cut(text, "/")
	n, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	per, ok := map[string]float64{"s": 1, "m": 60, "h": 3600}[strings.TrimSpace(unit)]
	if err != nil || !ok || !(n/per >= minRate && n/per <= maxRate) {
		return 0, fmt.Errorf("%.40q: want calls a time, such as 100/s, 90/m or 1000/h", text)
	}
	return n / per, nil
}

func readAuthorities(name string) (*x509.CertPool, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("%w: want a file of certificates in PEM", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s holds no certificate in PEM", name)
	}
	return pool, nil
}

// list reads a field of several values.
func (f *file) list(e *Endpoint, name string, value *yaml.Node) (faults []error) {
	if value.Kind != yaml.SequenceNode {
		return []error{errors.New("want a list, such as [a, b]")} // what is there may be a secret
	}
	if name == "schemes" {
		e.Schemes = nil
	}
	for i, item := range value.Content {
		item = yamlfile.Resolved(item)
		err := errors.New("want one value")
		if item.Kind == yaml.ScalarNode && item.ShortTag() != "!!null" {
			err = f.add(e, name, item.Value)
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("number %d: %w", i+1, err))
		}
	}
	return faults
}

// add takes in a value of a list.
func (f *file) add(e *Endpoint, name, text string) error {
	switch name {
	case "schemes":
		if text != "http" && text != "https" {
			return fmt.Errorf("%.40q: want http or https", text)
		}
		e.Schemes = append(e.Schemes, text)
	case "hosts":
		host, ok := normalHost(strings.TrimPrefix(text, "*."))
		if !ok || strings.ContainsAny(host, "*/") {
			return fmt.Errorf("%.40q: want a host without a port, such as hooks.example.com, or *.example.com for all below it", text)
		}
		if strings.HasPrefix(text, "*.") {
			host = "*." + host
		}
		e.Hosts = append(e.Hosts, host)
	case "allow_private":
		prefix, err := netip.ParsePrefix(text)
		if addr, addrErr := netip.ParseAddr(text); addrErr == nil && addr.Zone() == "" {
			prefix, err = addr.Prefix(addr.BitLen())
		}
		if err != nil {
			return fmt.Errorf("%.40q: want addresses such as 10.0.0.0/8 or fd00::/8", text)
		}
		e.AllowPrivate = append(e.AllowPrivate, prefix.Masked())
	case "secrets":
		return f.secret(e, text)
	}
	return nil
}

// secret takes in a secret. Nothing of it is ever in an error.
func (f *file) secret(e *Endpoint, text string) error {
	secret, elsewhere, err := f.lookUp(text)
	if err != nil {
		return err
	}
	if !elsewhere {
		return errors.New("want env:NAME or file:PATH: a secret has no place in this file")
	}
	bare := strings.TrimPrefix(secret, "whsec_")
	key, err := base64.StdEncoding.DecodeString(bare)
	if err != nil || len(key) < minSecretBytes {
		return fmt.Errorf("%s: want whsec_ and at least %d bytes in base64, as Standard Webhooks has it: echo whsec_$(openssl rand -base64 32)",
			text, minSecretBytes)
	}
	signer, err := standardwebhooks.NewWebhookRaw(key)
	if err != nil {
		return fmt.Errorf("%s: it cannot be used", text)
	}
	e.signers = append(e.signers, signer)
	e.secrets = append(e.secrets, bare)
	return nil
}

// lookUp returns what env:NAME or file:PATH stands for, without white space around it, or the text itself.
func (f *file) lookUp(text string) (value string, elsewhere bool, err error) {
	if name, ok := strings.CutPrefix(text, fromVariable); ok {
		value, ok = f.variable(name)
		if value = strings.TrimSpace(value); !ok || value == "" {
			return "", true, fmt.Errorf("the environment variable %s is not set", name)
		}
		return value, true, nil
	}
	if name, ok := strings.CutPrefix(text, fromFile); ok {
		content, err := os.ReadFile(name)
		if err != nil {
			return "", true, err
		}
		if value = strings.TrimSpace(string(content)); value == "" {
			return "", true, fmt.Errorf("%s is empty", name)
		}
		return value, true, nil
	}
	return text, false, nil
}

// headers reads the further headers of each call.
func (f *file) headers(e *Endpoint, value *yaml.Node) (faults []error) {
	if value.Kind != yaml.MappingNode {
		return []error{errors.New("want names and values, such as X-Shop: shop-1")}
	}
	e.Headers = http.Header{}
	reserved := map[string]bool{
		"Host": true, "Content-Type": true, "Content-Length": true, "Transfer-Encoding": true, "Connection": true, "Trailer": true, "Te": true,
		"Upgrade": true, "Keep-Alive": true, "Proxy-Authorization": true, "Proxy-Connection": true, "Expect": true, "Accept-Encoding": true,
		"Webhook-Id": true, "Webhook-Timestamp": true, "Webhook-Signature": true,
	}
	for name, item := range yamlfile.Pairs(value) {
		canonical := http.CanonicalHeaderKey(name.Value)
		switch {
		case !isToken(name.Value):
			faults = append(faults, fmt.Errorf("%.40q is no name of a header", name.Value))
			continue
		case reserved[canonical]:
			faults = append(faults, fmt.Errorf("%s is set by timerd or by HTTP", canonical))
			continue
		case e.Headers[canonical] != nil:
			faults = append(faults, fmt.Errorf("%s is there twice", canonical))
			continue
		case item.Kind != yaml.ScalarNode || item.ShortTag() == "!!null":
			faults = append(faults, fmt.Errorf("%s: want one value", canonical))
			continue
		}
		text, elsewhere, err := f.lookUp(item.Value)
		if err == nil && strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' }) {
			err = errors.New("want printable ASCII alone")
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", canonical, err))
			continue
		}
		e.Headers.Set(canonical, text)
		if elsewhere {
			e.secrets = append(e.secrets, text)
			for word := range strings.FieldsSeq(text) { // Bearer t0k3n: a host may send the token back alone
				if len(word) >= minSecretWord {
					e.secrets = append(e.secrets, word)
				}
			}
		}
	}
	return faults
}

// isToken tells whether a text can be the name of a header.
func isToken(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return r <= ' ' || r > '~' || strings.ContainsRune(`()<>@,;:\"/[]?={}`, r)
	})
}

// Differences tells in words which endpoints a new configuration adds and takes away, by what they match.
func (c *Config) Differences(next *Config) (added, removed []string) {
	names := func(c *Config) map[string]bool {
		all := map[string]bool{}
		for _, e := range c.Endpoints {
			all[e.Match.String()] = true
		}
		return all
	}
	before, after := names(c), names(next)
	for _, name := range slices.Sorted(maps.Keys(after)) {
		if !before[name] {
			added = append(added, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(before)) {
		if !after[name] {
			removed = append(removed, name)
		}
	}
	return added, removed
}

// urlError returns what is wrong with a URL without the URL, which may hold secrets.
func urlError(err error) error {
	if failure, ok := errors.AsType[*url.Error](err); ok {
		return failure.Err
	}
	return err
}
