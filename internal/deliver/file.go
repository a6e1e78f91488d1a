package deliver

import (
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/timerd-io/timerd/internal/textfile"
	"github.com/timerd-io/timerd/internal/yamlfile"
	"github.com/timerd-io/timerd/keys"
)

// Limits of a file.
const (
	minTimeout     = 10 * time.Millisecond
	maxTimeout     = 5 * time.Minute
	maxConcurrency = 10_000
	minRate        = 1.0 / 3600 // calls a second
	maxRate        = 1e6
	minExpire      = time.Second
	maxExpire      = 10 * 365 * 24 * time.Hour
	minSecretBytes = 24 // and the most: Standard Webhooks' limits
	maxSecretBytes = 64
	maxGroupBytes  = 64
	minSecretWord  = 8 // of a word in a header's value: a shorter one is no secret
)

// fields returns the names of an endpoint's fields.
func fields() []string {
	return []string{
		"match", "url", "schemes", "hosts", "ports", "secrets", "timeout", "concurrency", "rate", "headers", "body",
		"allow_private", "deny",
		"ca", "expire",
	}
}

// topFields returns the names of a file's top-level fields.
func topFields() []string { return []string{"endpoints", "group", "start", "version"} }

// Parse reads a file of endpoints. variable looks up an environment variable, for secrets. Parse returns all faults of
// the file, by line and without secrets; the configuration is valid only if there are none. The caller sets its
// File.Changed.
func Parse(text []byte, variable func(name string) (string, bool)) (*Config, yamlfile.Faults) {
	root, fault := yamlfile.Parse(text)
	if fault != nil {
		return nil, yamlfile.Faults{*fault}
	}
	f := file{variable: variable, config: Config{Group: DefaultGroup}}
	f.config.File.Sum = fmt.Sprintf("%x", sha256.Sum256(text))
	if root == nil {
		f.faults.Add(0, "it is empty: want a list endpoints:")
		return nil, f.faults
	}
	f.read(root)
	f.faults.Sort()
	return &f.config, f.faults
}

// file is a file that is being read.
type file struct {
	variable func(name string) (string, bool)
	config   Config
	matches  keys.Namespaces // of the earlier entries without a fault
	faults   yamlfile.Faults
}

func (f *file) read(root *yaml.Node) {
	if root.Kind != yaml.MappingNode {
		f.faults.Add(root.Line, "want a list endpoints:, got %s", yamlfile.KindOf(root))
		return
	}
	lines := yamlfile.Fields(root, topFields(), &f.faults, func(name string, value *yaml.Node) []error {
		if name == "endpoints" {
			f.endpoints(value)
			return nil
		}
		if value.Kind != yaml.ScalarNode || value.ShortTag() == "!!null" {
			return []error{fmt.Errorf("want one value, got %s", yamlfile.KindOf(value))}
		}
		if err := f.config.set(name, value.Value); err != nil {
			return []error{err}
		}
		return nil
	})
	if lines["endpoints"] == 0 {
		f.faults.Add(root.Line, "want a list endpoints:")
	}
}

// endpoints reads the list of endpoints.
func (f *file) endpoints(list *yaml.Node) {
	if list.Kind != yaml.SequenceNode || len(list.Content) == 0 {
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

// set sets a top-level field of the file.
func (c *Config) set(name, text string) (err error) {
	switch name {
	case "group":
		if c.Group = text; text == "" || len(text) > maxGroupBytes || keys.EncodeToken(text) != text {
			return fmt.Errorf("%.40q: want a name of at most %d letters, digits, - and _", text, maxGroupBytes)
		}
	case "version":
		if c.File.Version, err = strconv.ParseUint(text, 10, 63); err != nil || c.File.Version == 0 {
			return fmt.Errorf("%.40q: want a whole number from 1 on, greater for each newer file", text)
		}
	case "start":
		switch text {
		case "all":
		case "now":
			c.Start.Now = true
		default:
			if c.Start.At, err = time.Parse(time.RFC3339, text); err != nil {
				return fmt.Errorf("%.40q: want all, now, or a time such as 2026-11-20T09:00:00Z", text)
			}
		}
	}
	return nil
}

// endpoint reads an entry.
func (f *file) endpoint(line int, n *yaml.Node) {
	e := &Endpoint{
		Schemes: []string{"http", "https"}, Timeout: DefaultTimeout, Concurrency: DefaultConcurrency, Body: BodyEvent,
		Expire: DefaultExpire,
	}
	before := len(f.faults)
	good := map[string]bool{} // the fields without a fault
	lines := yamlfile.Fields(n, fields(), &f.faults, func(name string, value *yaml.Node) []error {
		faults := f.field(e, name, value)
		good[name] = len(faults) == 0
		return faults
	})
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
	anyHost := len(e.From) > 0 && len(e.Hosts) == 0 && (good["hosts"] || lines["hosts"] == 0)
	if strangers := e.secretHeaders; len(strangers) > 0 && anyHost {
		f.faults.Add(lines["headers"],
			"headers: %s would reach any host that a payload names: list the allowed hosts in hosts:",
			strings.Join(strangers, ", "))
	}
	f.config.Endpoints = append(f.config.Endpoints, e)
	if !good["match"] {
		return
	}
	if i := slices.IndexFunc(f.matches, func(m keys.Namespace) bool { return m.Covers(e.Match) }); i >= 0 {
		f.faults.Add(lines["match"], "match: %s is covered by the earlier %s, which takes its events: put it first",
			e.Match, f.matches[i])
	}
	f.matches = append(f.matches, e.Match)
}

// field reads a field, and returns its faults.
func (f *file) field(e *Endpoint, name string, value *yaml.Node) []error {
	switch name {
	case "schemes", "hosts", "secrets", "allow_private", "deny":
		return f.list(e, name, value)
	case "headers":
		return f.headers(e, value)
	case "ports":
		if e.AnyPort = value.Kind == yaml.ScalarNode && value.Value == "any"; e.AnyPort {
			return nil
		}
		return f.list(e, name, value)
	}
	if value.Kind != yaml.ScalarNode || value.ShortTag() == "!!null" {
		return []error{fmt.Errorf("want one value, got %s", yamlfile.KindOf(value))}
	}
	if err := e.set(name, value.Value); err != nil {
		return []error{err}
	}
	return nil
}

// set sets a field that has one value.
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
	text = strings.TrimSpace(text)
	inner, ok := strings.CutPrefix(text, "{data.")
	inner, closed := strings.CutSuffix(inner, "}")
	switch {
	case ok && closed && !strings.ContainsAny(inner, "{}"):
		from = strings.Split(inner, ".")
		if slices.Contains(from, "") {
			return "", nil, errors.New("want {data.NAME} or {data.NAME.NAME}, without empty names")
		}
		return "", from, nil
	case strings.ContainsAny(text, "{}"):
		return "", nil, errors.New("want a URL, or only {data.NAME} for a URL in the payload")
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

// parseRate reads 100/s, 90/m or 1000/h, and returns it in calls a second.
func parseRate(text string) (float64, error) {
	number, unit, _ := strings.Cut(text, "/")
	n, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	per, ok := map[string]float64{"s": 1, "m": 60, "h": 3600}[strings.TrimSpace(unit)]
	if err != nil || !ok || !(n/per >= minRate && n/per <= maxRate) {
		return 0, fmt.Errorf("%.40q: want a number of calls in a time, such as 100/s, 90/m or 1000/h", text)
	}
	return n / per, nil
}

func readAuthorities(name string) (*x509.CertPool, error) {
	text, err := textfile.Read(name)
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
		return []error{errors.New("want a list, such as [a, b]")} // the value may be a secret, so it is not shown
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

// add adds a value to a list.
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
			return fmt.Errorf("%.40q: want a host without a port, such as hooks.example.com, or *.example.com for "+
				"all below it", text)
		}
		if strings.HasPrefix(text, "*.") {
			host = "*." + host
		}
		e.Hosts = append(e.Hosts, host)
	case "ports":
		n, err := strconv.ParseUint(text, 10, 16)
		if err != nil || n == 0 {
			return fmt.Errorf("%.40q: want a port from 1 to 65535, or any in place of the list", text)
		}
		e.Ports = append(e.Ports, uint16(n))
	case "allow_private", "deny":
		prefix, err := parsePrefix(text)
		if err != nil {
			return err
		}
		if name == "deny" {
			e.Deny = append(e.Deny, prefix)
		} else {
			e.AllowPrivate = append(e.AllowPrivate, prefix)
		}
	case "secrets":
		return f.secret(e, text)
	}
	return nil
}

// parsePrefix reads addresses: 10.0.0.0/8, or a single one.
func parsePrefix(text string) (netip.Prefix, error) {
	prefix, err := netip.ParsePrefix(text)
	if addr, addrErr := netip.ParseAddr(text); addrErr == nil && addr.Zone() == "" {
		prefix, err = addr.Prefix(addr.BitLen())
	}
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%.40q: want addresses such as 10.0.0.0/8 or fd00::/8", text)
	}
	return prefix.Masked(), nil
}

// Differences returns the namespaces of the endpoints that a new configuration adds and removes.
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

// urlError returns the fault of a URL without the URL, which may hold secrets.
func urlError(err error) error {
	if failure, ok := errors.AsType[*url.Error](err); ok {
		return failure.Err
	}
	return err
}
