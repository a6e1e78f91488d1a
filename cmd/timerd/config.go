package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/kelseyhightower/envconfig"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/notify"
)

// envPrefix begins the name of every variable that timerd reads.
const envPrefix = "TIMERD"

// Bounds of what the configuration may say.
const (
	minSweep = 100 * time.Millisecond
	maxSweep = time.Minute
	// maxLease keeps the second publication of a firing, by whoever takes over
	// from a dead timerd, well within JetStream's duplicate window of 2 minutes.
	minLease = time.Second
	maxLease = 30 * time.Second
	// minDuplicates is the shortest duplicate window that any lease is fine with.
	minDuplicates   = 30 * time.Second
	maxPayloadBound = 512 << 20 // what a Redis string can hold
	maxPrefixBytes  = 128
	maxStreamBytes  = 200 // JetStream allows 255; the suffixes and consumer names need room
)

// environment is what the environment says, as text: envconfig finds the
// variables, the parse functions judge the values, so that every fault is found
// and none can hide another one or print a secret.
type environment struct {
	Redis struct {
		URL  string `default:"redis://127.0.0.1:6379/0" desc:"go-redis URL: redis://, rediss:// or unix://; in sentinel and cluster mode with go-redis's own URL parameters"`
		Mode string `default:"standalone" desc:"standalone, sentinel or cluster"`
	}
	NATS struct {
		URL   string `default:"nats://127.0.0.1:4222" desc:"one or more NATS URLs, separated by commas; or embedded[://host:port], a server within timerd that keeps its streams in TIMERD_DATA_DIR"`
		Creds string `desc:"file with NATS credentials"`
		CA    string `desc:"file with the certificate authorities of the NATS server, in PEM"`
		Cert  string `desc:"file with the client certificate for NATS, in PEM"`
		Key   string `desc:"file with the private key of that certificate, in PEM"`
	}
	DataDir        string `split_words:"true" desc:"directory of the embedded NATS server's streams"`
	Namespaces     string `desc:"the keys that are timers: a comma-separated list of app[:module[:type]], * for any"`
	Retry          string `default:"*=exp(10s,2,1h,12)~10%" desc:"retry policies: namespace=policy; ... where a policy is a preset (wechatpay, alipay, adyen, standard-webhooks), a list of delays, or exp(first,factor,max,retries)"`
	SweepInterval  string `split_words:"true" default:"1s" desc:"how often to look for timers whose events were lost"`
	Lease          string `default:"10s" desc:"how long a claim outlives a dead timerd"`
	MaxPayload     string `split_words:"true" default:"262144" desc:"bytes of payload that a timer may have"`
	KeyspaceEvents string `split_words:"true" default:"on" desc:"off: run without Redis's events, by audit and sweep only"`
	SubjectPrefix  string `split_words:"true" default:"timers" desc:"what the NATS subjects begin with: one token, or several joined by dots"`
	Stream         string `default:"TIMERS" desc:"name of the JetStream stream; with _RETRY and _DEAD appended, of the two others"`
	HTTPAddr       string `split_words:"true" default:"127.0.0.1:8080" desc:"address of /healthz, /readyz and /metrics, or off"`
	LogLevel       string `split_words:"true" default:"info" desc:"debug, info, warn or error"`
	LogFormat      string `split_words:"true" default:"text" desc:"text or json"`
}

// config is the validated configuration. A command that needs only a part of it
// reads only that part, and faults elsewhere do not stop it.
type config struct {
	Redis   redisConfig
	NATS    natsConfig
	Service serviceConfig
	Log     logConfig

	// Warnings names variables that nobody reads, and settings without effect.
	Warnings []string
}

// streams returns the streams to use. Their duplicate window must outlast a
// claim, with room for whoever takes over from a dead timerd.
func (c config) streams() notify.Streams {
	s := c.NATS.Streams
	s.MinDuplicates = max(minDuplicates, 2*c.Service.Lease)
	return s
}

// serviceConfig is what only a running timerd needs.
type serviceConfig struct {
	Namespaces     keys.Namespaces
	Retry          notify.Policies
	SweepInterval  time.Duration
	Lease          time.Duration
	MaxPayload     int // bytes
	KeyspaceEvents bool
	HTTPAddr       string // host:port; "" means that there is no HTTP server
}

// logConfig is how timerd logs.
type logConfig struct {
	Level slog.Level
	JSON  bool
}

// section is a part of the configuration.
type section uint8

// The sections.
const (
	sectionLog section = 1 << iota
	sectionRedis
	sectionNATS
	sectionService
)

// configError holds every fault of the configuration. The program ends with
// exit code 2.
type configError struct{ faults []error }

func (e *configError) Error() string {
	var b strings.Builder
	b.WriteString("the configuration has ")
	if len(e.faults) == 1 {
		b.WriteString("a fault:")
	} else {
		fmt.Fprintf(&b, "%d faults:", len(e.faults))
	}
	for _, fault := range e.faults {
		b.WriteString("\n  " + fault.Error())
	}
	return b.String()
}

func (e *configError) Unwrap() []error { return e.faults }

// faults gathers what is wrong. Its methods take the name of a variable without
// the prefix.
type faults struct{ errs []error }

// add reports a value that may be shown.
func (f *faults) add(name, value, want string) {
	if value == "" {
		f.errs = append(f.errs, fmt.Errorf("%s_%s is empty: want %s", envPrefix, name, want))
		return
	}
	const shown = 200
	if len(value) > shown {
		value = value[:shown] + "…"
	}
	f.errs = append(f.errs, fmt.Errorf("%s_%s=%q: want %s", envPrefix, name, value, want))
}

// addf reports a fault in words that hold no secret.
func (f *faults) addf(name, format string, args ...any) {
	f.errs = append(f.errs, fmt.Errorf(envPrefix+"_"+name+": "+format, args...))
}

// readConfig reads and judges the given sections of the environment. Its error
// is a *configError.
func readConfig(sections section) (config, error) {
	env, err := readEnvironment()
	if err != nil {
		return config{}, err
	}
	return env.parse(sections)
}

func readEnvironment() (environment, error) {
	var env environment
	if err := envconfig.Process(envPrefix, &env); err != nil {
		return env, &configError{[]error{err}} // cannot happen: every field is a string
	}
	return env, nil
}

// parse judges the given sections. Its error is a *configError.
func (env *environment) parse(sections section) (config, error) {
	var c config
	var f faults
	if sections&sectionLog != 0 {
		c.Log = parseLog(env, &f)
	}
	if sections&sectionRedis != 0 {
		c.Redis = parseRedis(env, &f)
	}
	if sections&sectionNATS != 0 {
		c.NATS = parseNATS(env, &f)
		if c.NATS.Embedded && env.NATS.Creds+env.NATS.CA+env.NATS.Cert+env.NATS.Key != "" {
			c.Warnings = append(c.Warnings, "TIMERD_NATS_CREDS, _CA, _CERT and _KEY have no effect: the NATS server is embedded")
		}
	}
	if sections&sectionService != 0 {
		c.Service = parseService(env, &f)
	}
	c.Warnings = append(c.Warnings, unknownVariables(os.Environ())...)
	if len(f.errs) > 0 {
		return c, &configError{f.errs}
	}
	return c, nil
}

func parseLog(env *environment, f *faults) logConfig {
	var c logConfig
	switch strings.ToLower(env.LogLevel) {
	case "debug":
		c.Level = slog.LevelDebug
	case "info":
		c.Level = slog.LevelInfo
	case "warn":
		c.Level = slog.LevelWarn
	case "error":
		c.Level = slog.LevelError
	default:
		f.add("LOG_LEVEL", env.LogLevel, "debug, info, warn or error")
	}
	switch strings.ToLower(env.LogFormat) {
	case "text":
	case "json":
		c.JSON = true
	default:
		f.add("LOG_FORMAT", env.LogFormat, "text or json")
	}
	return c
}

func parseService(env *environment, f *faults) serviceConfig {
	c := serviceConfig{
		SweepInterval: parseDuration("SWEEP_INTERVAL", env.SweepInterval, minSweep, maxSweep, "1s", f),
		Lease:         parseDuration("LEASE", env.Lease, minLease, maxLease, "10s", f),
		MaxPayload:    parseMaxPayload(env.MaxPayload, f),
		HTTPAddr:      parseHTTPAddr(env.HTTPAddr, f),
	}
	namespaces, err := keys.ParseNamespaces(env.Namespaces)
	switch {
	case env.Namespaces == "":
		f.addf("NAMESPACES", "is not set: want the keys that are timers, such as app1:trans:notice,shop, or * for every four-part key")
	case err != nil:
		for _, fault := range unjoin(err) {
			f.addf("NAMESPACES", "%w", fault)
		}
	}
	c.Namespaces = namespaces
	if c.Retry, err = notify.ParsePolicies(env.Retry); err != nil {
		for _, fault := range unjoin(err) {
			f.addf("RETRY", "%w", fault)
		}
	}
	switch strings.ToLower(env.KeyspaceEvents) {
	case "on":
		c.KeyspaceEvents = true
	case "off":
	default:
		f.add("KEYSPACE_EVENTS", env.KeyspaceEvents, "on or off")
	}
	return c
}

// unjoin returns the errors that errors.Join joined, or err alone.
func unjoin(err error) []error {
	var joined interface{ Unwrap() []error }
	if errors.As(err, &joined) {
		return joined.Unwrap()
	}
	return []error{err}
}

func parseDuration(name, value string, low, high time.Duration, example string, f *faults) time.Duration {
	d, err := time.ParseDuration(value)
	if err != nil || d < low || d > high {
		f.add(name, value, fmt.Sprintf("a duration from %v to %v, such as %s", low, high, example))
	}
	return d
}

func parseMaxPayload(value string, f *faults) int {
	n, err := strconv.Atoi(value)
	if err != nil || n < 1 || n > maxPayloadBound {
		f.add("MAX_PAYLOAD", value, fmt.Sprintf("a number of bytes from 1 to %d, such as 262144", maxPayloadBound))
	}
	return n
}

func parseHTTPAddr(value string, f *faults) string {
	if strings.EqualFold(value, "off") {
		return ""
	}
	if !isHostPort(value) {
		f.add("HTTP_ADDR", value, "host:port, such as 127.0.0.1:8080 or :8080, or off")
	}
	return value
}

func isHostPort(s string) bool {
	_, port, err := net.SplitHostPort(s)
	if err != nil {
		return false
	}
	_, err = strconv.ParseUint(port, 10, 16)
	return err == nil
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

// helpFormat lists the variables for a help text.
const helpFormat = `{{range .}}{{if usage_description .}}  {{usage_key .}}{{with usage_default .}} (default {{.}}){{end}}
      {{usage_description .}}
{{end}}{{end}}`

// environmentHelp describes every variable that timerd reads.
func environmentHelp() string {
	var b strings.Builder
	b.WriteString("It is configured by the environment:\n\n")
	if err := envconfig.Usagef(envPrefix, &environment{}, &b, helpFormat); err != nil {
		return err.Error() // cannot happen: the template is constant
	}
	return b.String()
}
