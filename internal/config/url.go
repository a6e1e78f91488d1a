package config

import (
	"errors"
	"net/url"
	"strconv"
	"strings"
)

// addURL reports a URL that may hold secrets. cause, the parser's error, may be nil; secrets that it quotes are hidden.
func (f *faults) addURL(name, value, want string, cause error) {
	shown, ok := showURL(value)
	switch {
	case value == "":
		f.add(name, value, want)
	case !ok:
		f.addf(name, "not a URL that can be read (it is not shown: it may hold a password; in a password, write : / "+
			"? # @ %% as %%3A %%2F %%3F %%23 %%40 %%25): want %s", want)
	case cause != nil:
		f.addf(name, "%q: %s: want %s", shown, hideIn(cause.Error(), value), want)
	default:
		f.addf(name, "%q: want %s", shown, want)
	}
}

// hidden stands for a secret.
const hidden = "xxxxx"

// showURL returns a URL without its secrets; ok is false if it cannot locate them. It hides the user along with the
// password: a NATS token is there, and by mistake a Redis password, or its part before a colon. It also hides the value
// of every parameter that is not known to be harmless.
func showURL(raw string) (string, bool) {
	u, err := url.Parse(raw)
	if err != nil || u.Scheme == "" || u.Opaque != "" || u.Host == "" && u.Scheme != "unix" {
		return "", false
	}
	if u.User != nil {
		u.User = url.User(hidden)
	}
	rest := *u
	rest.User = nil
	if strings.Contains(rest.String(), "@") {
		return "", false // a password with a slash or similar was parsed as something else
	}
	q := u.Query()
	for name := range q {
		if !isHarmless(name) {
			q.Set(name, hidden)
		}
	}
	u.RawQuery = q.Encode()
	return u.String(), true
}

// checkHost returns an error for a URL with a list in the place of its host.
func checkHost(raw string) error {
	u, err := url.Parse(raw)
	if err != nil || strings.ContainsAny(u.Host, ",;| ，；、"+quotes) {
		return errors.New("the host holds a separator, a quote or a blank")
	}
	return nil
}

// isHarmless reports whether the values of a URL parameter may be shown.
func isHarmless(name string) bool {
	switch name {
	case "db", "addr", "master_name", "client_name", "protocol", "skip_verify", "max_retries", "min_retry_backoff",
		"max_retry_backoff",
		"dial_timeout", "read_timeout", "write_timeout", "pool_timeout", "pool_size", "pool_fifo", "min_idle_conns",
		"max_idle_conns",
		"max_active_conns", "conn_max_idle_time", "conn_max_lifetime", "idle_timeout", "max_conn_age",
		"replica_only", "read_only", "max_redirects", "route_by_latency", "route_randomly":
		return true
	}
	return false
}

// hideIn returns a text about a URL with the values hidden that showURL hides. If one of them still shows, it withholds
// the whole text. go-redis names unexpected options without their values.
func hideIn(text, raw string) string {
	if strings.HasPrefix(text, "redis: unexpected option: ") {
		return text
	}
	u, err := url.Parse(raw)
	if err != nil {
		return "it is malformed"
	}
	for name, values := range u.Query() {
		for _, value := range values {
			quoted := strings.Trim(strconv.Quote(value), `"`)
			if value != "" && !isHarmless(name) && (strings.Contains(text, value) || strings.Contains(text, quoted)) {
				return "a parameter is wrong or unknown"
			}
		}
	}
	return text
}
