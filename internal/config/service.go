package config

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/policy"
	"github.com/timerd-io/timerd/keys"
)

// Limits of the settings.
const (
	minSweep = 100 * time.Millisecond
	maxSweep = time.Minute
	minLease = time.Second
	// maxLease keeps a second publication of a firing, by another timerd after a crash, well within JetStream's
	// duplicate window of 2 minutes.
	maxLease        = 30 * time.Second
	maxPayloadBound = 512 << 20 // the limit of a Redis string
)

// Service has the settings that only a running timerd needs.
type Service struct {
	Namespaces     keys.Namespaces // the keys to adopt
	Retry          policy.Rules[policy.Retry]
	Late           policy.Rules[policy.Limit]     // for timers without a limit of their own
	Guard          policy.Rules[policy.GuardRule] // for timers without guards of their own
	SweepInterval  time.Duration
	Lease          time.Duration
	MaxPayload     int // bytes
	KeyspaceEvents bool
	PayloadAttempt bool   // whether the attempt in a plain payload counts
	EventData      string // the content type of all payloads; "" lets each have its own
	HTTPAddr       string // host:port; "" for no HTTP server
}

// parseService reads everything but Retry.
func parseService(env *environment, f *faults) Service {
	c := Service{
		SweepInterval: parseDuration("SWEEP_INTERVAL", env.SweepInterval, minSweep, maxSweep, "1s", f),
		Lease:         parseDuration("LEASE", env.Lease, minLease, maxLease, "10s", f),
		MaxPayload:    parseMaxPayload(env.MaxPayload, f),
		HTTPAddr:      parseHTTPAddr(env.HTTPAddr, f),

		KeyspaceEvents: parseSwitch("KEYSPACE_EVENTS", env.KeyspaceEvents, f),
		PayloadAttempt: parseSwitch("PAYLOAD_ATTEMPT", env.PayloadAttempt, f),
		EventData:      parseEventData(env.EventData, f),
	}
	namespaces, err := keys.ParseNamespaces(env.Namespaces)
	switch {
	case env.Namespaces == "":
		f.errs = append(f.errs, &diag.Fault{
			What: prefix + "_NAMESPACES is not set: it names the keys that are timers",
			Remedy: "export " + prefix +
				"_NAMESPACES='app1:trans:notice,shop', with your own names, or '*' for every four-part key",
		})
	case err != nil:
		f.addAll("NAMESPACES", err)
	}
	c.Namespaces = namespaces
	c.Late, c.Guard = parseLate(env, f), parseGuard(env, f)
	return c
}

func parseGuard(env *environment, f *faults) policy.Rules[policy.GuardRule] {
	guards, err := policy.ParseGuards(env.Guard)
	if err != nil {
		f.addAll("GUARD", err)
	}
	return guards
}

func parseLate(env *environment, f *faults) policy.Rules[policy.Limit] {
	limits, err := policy.ParseLimits(env.Late)
	if err != nil {
		f.addAll("LATE", err)
	}
	return limits
}

func parseSwitch(name, value string, f *faults) bool {
	on := strings.EqualFold(value, "on")
	if !on && !strings.EqualFold(value, "off") {
		f.add(name, value, "on or off")
	}
	return on
}

func parseEventData(value string, f *faults) string {
	switch strings.ToLower(value) {
	case "auto":
		return ""
	case "text":
		return event.DataText
	case "base64":
		return event.DataBinary
	}
	f.add("EVENT_DATA", value, "auto, text or base64")
	return ""
}

func parseRetry(env *environment, f *faults) policy.Rules[policy.Retry] {
	policies, err := policy.ParseRetries(env.Retry)
	if err != nil {
		f.addAll("RETRY", err)
	}
	return policies
}

func parseDuration(name, value string, low, high time.Duration, example string, f *faults) time.Duration {
	d, err := time.ParseDuration(value)
	if err != nil || d < low || d > high {
		f.add(name, value, fmt.Sprintf("a duration from %v to %v, such as %s", low, high, example))
	}
	return d
}

func parseMaxPayload(value string, f *faults) int {
	fits := func(n int64) bool { return n >= 1 && n <= maxPayloadBound }
	return int(parseNumber("MAX_PAYLOAD", value, fits, fmt.Sprintf("a number of bytes from 1 to %d, such as 262144",
		maxPayloadBound), f))
}

func parseNumber(name, value string, fits func(int64) bool, want string, f *faults) int64 {
	n, err := strconv.ParseInt(value, 10, 64)
	if err != nil || !fits(n) {
		f.add(name, value, want)
	}
	return n
}

func parseHTTPAddr(value string, f *faults) string {
	if strings.EqualFold(value, "off") {
		return ""
	}
	if !IsHostPort(value) {
		f.add("HTTP_ADDR", value, "host:port, such as 127.0.0.1:8080 or :8080, or off")
	}
	return value
}
