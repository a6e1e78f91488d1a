// Package config reads the environment, and is the only package to do so: the TIMERD_ variables, their allowed values,
// and their faults. Every other package gets a value of this one.
//
// A new setting is a field of environment, which makes it known and documented, and a field of [Redis],
// [NATS], [Service] or [Log], which its parse function fills in or reports.
package config

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/kelseyhightower/envconfig"

	"github.com/timerd-io/timerd/internal/streams"
)

// prefix begins the name of every variable that timerd reads.
const prefix = "TIMERD"

// minDuplicates is the shortest duplicate window that suits any lease.
const minDuplicates = 30 * time.Second

// environment has the variables as text. envconfig finds them and the parse functions judge them, so that every fault
// is reported, and no message holds a secret.
type environment struct {
	Redis struct {
		URL  string `default:"redis://127.0.0.1:6379/0" desc:"go-redis URL: redis://, rediss:// or unix://; in sentinel and cluster mode with go-redis's own URL parameters"`
		Mode string `default:"standalone" desc:"standalone, sentinel or cluster"`
		CA   string `desc:"file with the certificate authorities of the Redis server, in PEM, for rediss://"`
		Cert string `desc:"file with the client certificate for Redis, in PEM"`
		Key  string `desc:"file with the private key of that certificate, in PEM"`
	}
	NATS struct {
		URL     string `default:"nats://127.0.0.1:4222" desc:"one or more NATS URLs, separated by commas; or embedded[://[user:password@]host:port], a server within timerd that keeps its streams in TIMERD_DATA_DIR; other machines need the password"`
		Context string `desc:"name of a context of the nats command, or the path of its file, instead of the URL, the credentials and the files for TLS"`
		Creds   string `desc:"file with NATS credentials"`
		CA      string `desc:"file with the certificate authorities of the NATS server, in PEM"`
		Cert    string `desc:"file with the client certificate for NATS, in PEM"`
		Key     string `desc:"file with the private key of that certificate, in PEM"`
	}
	DataDir        string `split_words:"true" desc:"directory of the embedded NATS server's streams"`
	Namespaces     string `desc:"the keys that are timers: a comma-separated list of app[:module[:type]], * for any"`
	Retry          string `default:"*=exp(10s,2,1h,12)~10%" desc:"retry policies: namespace=policy; ... where a policy is a preset (wechatpay, alipay, adyen, standard-webhooks), a list of delays, or exp(first,factor,max,retries)"`
	Late           string `desc:"limits on lateness of timers without one of their own: namespace=duration; ... and drop after a duration to forget such a timer; 0 for no limit"`
	Guard          string `desc:"guards of timers without one of their own: namespace=unless KEY; ... or if KEY, or both, with %app, %module, %type, %id and %% in a key"`
	SweepInterval  string `split_words:"true" default:"1s" desc:"how often to look for timers whose events were lost"`
	Lease          string `default:"10s" desc:"how long a claim outlives a dead timerd"`
	MaxPayload     string `split_words:"true" default:"262144" desc:"bytes of payload that a timer may have"`
	KeyspaceEvents string `split_words:"true" default:"on" desc:"off: run without Redis's events, by audit and sweep only"`
	PayloadAttempt string `split_words:"true" default:"on" desc:"off: an attempt in a payload is ignored"`
	EventData      string `split_words:"true" default:"auto" desc:"the form of payloads in events: auto, by their content; text, as a JSON string; base64"`
	SubjectPrefix  string `split_words:"true" default:"timers" desc:"the beginning of the NATS subjects: one token, or several joined by dots"`
	Stream         string `default:"TIMERS" desc:"name of the stream of firings; the names of the others append _RETRY, _DEAD and so on"`
	StreamMaxAge   string `split_words:"true" default:"168h" desc:"how long the stream of firings keeps them, if timerd makes it; 0 for ever"`
	StreamMaxBytes string `split_words:"true" default:"0" desc:"size limit of that stream in bytes, if timerd makes it: beyond it the oldest firings are dropped; 0 for no limit; where the account demands limits, other streams get a part of it"`
	StreamReplicas string `split_words:"true" default:"1" desc:"how many servers of a NATS cluster keep each stream that timerd makes"`
	HTTPAddr       string `split_words:"true" default:"127.0.0.1:8080" desc:"address of /healthz, /readyz and /metrics, or off; of timerd deliver it is 127.0.0.1:8081 by default"`
	Console        struct {
		Addr     string `default:"off" desc:"address of the console, timerd's web page: host:port, or off"`
		Password string `secret:"" desc:"password of the console, for the user timerd; required unless its address is a loopback one"`
		Actions  string `default:"off" desc:"on: timers can be changed in the console; off: it is read-only"`
		Hosts    string `desc:"further names by which browsers reach the console, as behind a proxy; separated by commas"`
		Proxies  string `desc:"networks of the proxies before the console, whose X-Forwarded-For counts; separated by commas"`
	}
	LogLevel  string `split_words:"true" default:"info" desc:"debug, info, warn or error"`
	LogFormat string `split_words:"true" default:"text" desc:"text or json"`
}

// Config is the validated configuration. Only the parts that were asked for are set.
type Config struct {
	Redis   Redis
	NATS    NATS
	Service Service
	Console Console
	Log     Log

	// ProcessorsChosen is set if the environment sets the number of processors that Go uses.
	ProcessorsChosen bool
	// Warnings names unknown variables, and settings without effect. It holds no secrets.
	Warnings []string
}

// Streams returns the streams to use. Their duplicate window must outlast a
// claim, with room for the timerd that takes over from a dead one.
func (c Config) Streams() streams.Config {
	s := c.NATS.Streams
	s.MinDuplicates = max(minDuplicates, 2*c.Service.Lease)
	return s
}

// Section is a part of the configuration. A command reads only the sections it needs; faults elsewhere do not stop it.
type Section uint8

// The sections, to be combined with |.
const (
	SectionLog     Section = 1 << iota
	SectionRedis           // how to connect to Redis
	SectionNATS            // how to connect to NATS, and the names of the streams
	SectionRetry           // TIMERD_RETRY alone
	SectionService         // the settings of a running timerd, with SectionRetry
	SectionDeliver         // the settings of timerd deliver
	SectionConsole         // the settings of timerd console, with SectionRetry
)

// Read reads and judges some sections of the environment. Its error is an [*Error].
func Read(sections Section) (Config, error) {
	return read(sections, func(*environment) {})
}

// Dev has the settings that `timerd dev` chooses itself.
type Dev struct {
	RedisURL string // of a standalone Redis
	NATSAddr string // address of the embedded NATS server, host:port
	DataDir  string // of the embedded NATS server
	HTTPAddr string // host:port

	ConsoleAddr string // host:port, or off
	// Given, if not nil, are the settings in place of the environment, which is not read then.
	Given *Given
}

// Given are settings of a program that runs timerd within itself, as text; an empty one is the default.
type Given struct {
	Retry, Late, Guard string // as TIMERD_RETRY, TIMERD_LATE and TIMERD_GUARD
}

// nobodys is a prefix that no variable can have.
const nobodys = "="

// Read reads all other settings from the environment. Every key is a timer. By default only warnings are logged, so
// that firings stand out. Its error is an [*Error].
func (d Dev) Read() (Config, error) {
	from := prefix
	if d.Given != nil {
		from = nobodys
	}
	return readFrom(from, SectionLog|SectionRedis|SectionNATS|SectionService, func(env *environment) {
		if d.Given != nil {
			env.Retry, env.Late, env.Guard = cmp.Or(d.Given.Retry, env.Retry), d.Given.Late, d.Given.Guard
		}
		env.Redis.URL, env.Redis.Mode = d.RedisURL, string(Standalone)
		env.Redis.CA, env.Redis.Cert, env.Redis.Key = "", "", ""
		env.NATS.URL, env.DataDir = embedded+"://"+d.NATSAddr, d.DataDir
		env.NATS.Context, env.NATS.Creds, env.NATS.CA, env.NATS.Cert, env.NATS.Key = "", "", "", "", ""
		env.StreamReplicas = "1"
		env.Namespaces = "*"
		env.HTTPAddr = d.HTTPAddr
		env.Console.Addr, env.Console.Actions = d.ConsoleAddr, "on"
		if _, chosen := os.LookupEnv(prefix + "_LOG_LEVEL"); !chosen {
			env.LogLevel = "warn"
		}
	})
}

// read reads the environment, applies override, and validates the given sections. Its error is an [*Error].
func read(sections Section, override func(*environment)) (Config, error) {
	return readFrom(prefix, sections, override)
}

// readFrom is read for variables with a prefix.
func readFrom(from string, sections Section, override func(*environment)) (Config, error) {
	env := &environment{}
	if err := envconfig.Process(from, env); err != nil {
		return Config{}, &Error{[]error{err}} // cannot happen: every field is a string
	}
	trimFields(reflect.ValueOf(env).Elem())
	override(env)
	c := Config{ProcessorsChosen: os.Getenv("GOMAXPROCS") != ""}
	f := faults{quoted: quotedVariables()}
	if sections&SectionLog != 0 {
		c.Log = parseLog(env, &f)
	}
	if sections&SectionRedis != 0 {
		c.Redis = parseRedis(env, &f)
	}
	if sections&SectionNATS != 0 {
		c.NATS = parseNATS(env, &f)
		others := env.NATS.Creds+env.NATS.CA+env.NATS.Cert+env.NATS.Key != ""
		_, hasURL := os.LookupEnv(prefix + "_NATS_URL")
		c.NATS.Chosen = hasURL || env.NATS.Context != ""
		switch {
		case env.NATS.Context != "" && (hasURL || others):
			c.Warnings = append(c.Warnings,
				"TIMERD_NATS_URL, _CREDS, _CA, _CERT and _KEY have no effect: TIMERD_NATS_CONTEXT is set")
		case c.NATS.Embedded && others:
			c.Warnings = append(c.Warnings,
				"TIMERD_NATS_CREDS, _CA, _CERT and _KEY have no effect: the NATS server is embedded")
		}
	}
	if sections&SectionService != 0 {
		c.Service = parseService(env, &f)
		c.Console = parseConsole(env, &f)
	}
	if sections&SectionConsole != 0 {
		if _, chosen := os.LookupEnv(prefix + "_CONSOLE_ADDR"); !chosen {
			env.Console.Addr = defaultConsoleAddr
		}
		c.Console = parseConsole(env, &f)
		if c.Console.Addr == "" && env.Console.Addr != "" {
			f.add("CONSOLE_ADDR", env.Console.Addr, "host:port, such as "+defaultConsoleAddr)
		}
		c.Service.Late = parseLate(env, &f)
		c.Service.MaxPayload = parseMaxPayload(env.MaxPayload, &f)
	}
	if sections&(SectionRetry|SectionService|SectionConsole) != 0 {
		c.Service.Retry = parseRetry(env, &f)
	}
	if sections&SectionDeliver != 0 {
		if _, chosen := os.LookupEnv(prefix + "_HTTP_ADDR"); !chosen {
			env.HTTPAddr = defaultDeliverAddr
		}
		c.Service.HTTPAddr = parseHTTPAddr(env.HTTPAddr, &f)
	}
	c.Warnings = append(c.Warnings, unknownVariables(os.Environ())...)
	if len(f.errs) > 0 {
		return c, &Error{f.errs}
	}
	return c, nil
}

// defaultDeliverAddr is the default HTTP address of timerd deliver: free beside a timerd on the same machine.
const defaultDeliverAddr = "127.0.0.1:8081"

// defaultConsoleAddr is the default address of timerd console.
const defaultConsoleAddr = "127.0.0.1:8090"

// Variable returns an environment variable that a file names, without white space around it, and reports whether it is
// set.
func Variable(name string) (string, bool) {
	value, ok := os.LookupEnv(name)
	return trim(value), ok
}

// Error holds every fault of the configuration, without secrets. A program that gets one ends with exit code 2.
type Error struct{ Faults []error }

func (e *Error) Error() string {
	text := "the configuration has 1 fault:"
	if n := len(e.Faults); n > 1 {
		text = fmt.Sprintf("the configuration has %d faults:", n)
	}
	for _, fault := range e.Faults {
		text += "\n  " + fault.Error()
	}
	return text
}

func (e *Error) Unwrap() []error { return e.Faults }

// faults collects the faults. Its methods take the name of a variable without the prefix.
type faults struct {
	errs   []error
	quoted map[string]bool // variables in quotes, until a fault mentions the quotes
}

// report adds a fault of a variable, which begins with its name.
func (f *faults) report(name string, fault error) {
	if f.quoted[name] {
		fault = fmt.Errorf("%w (it is in quotes, which files of variables keep, as docker's --env-file does: leave "+
			"them out)", fault)
		delete(f.quoted, name)
	}
	f.errs = append(f.errs, fault)
}

// add reports a bad value that may be shown.
func (f *faults) add(name, value, want string) {
	if value == "" {
		f.report(name, fmt.Errorf("%s_%s is empty: want %s", prefix, name, want))
		return
	}
	const shown = 200
	if len(value) > shown {
		value = value[:shown] + "…"
	}
	f.report(name, fmt.Errorf("%s_%s=%q: want %s", prefix, name, value, want))
}

// addf reports a fault in words that hold no secret.
func (f *faults) addf(name, format string, args ...any) {
	f.report(name, fmt.Errorf(prefix+"_"+name+": "+format, args...))
}

// addAll reports each of the errors that errors.Join joined, or err alone. They hold no secrets.
func (f *faults) addAll(name string, err error) {
	all := []error{err}
	var joined interface{ Unwrap() []error }
	if errors.As(err, &joined) {
		all = joined.Unwrap()
	}
	for _, one := range all {
		f.addf(name, "%w", one)
	}
}

// IsHostPort reports whether s is host:port with a port number.
func IsHostPort(s string) bool {
	host, port, err := net.SplitHostPort(s)
	if err != nil || strings.ContainsAny(host, quotes) {
		return false
	}
	_, err = strconv.ParseUint(port, 10, 16)
	return err == nil
}

// helpFormat lists the variables for a help text.
const helpFormat = `{{range .}}{{if usage_description .}}  {{usage_key .}}{{with usage_default .}} (default {{.}}){{end}}
      {{usage_description .}}
{{end}}{{end}}`

// Help describes every variable that timerd reads.
func Help() string {
	var b strings.Builder
	b.WriteString("It is configured by the environment:\n\n")
	if err := envconfig.Usagef(prefix, &environment{}, &b, helpFormat); err != nil {
		return err.Error() // cannot happen: the template is constant
	}
	return b.String()
}
