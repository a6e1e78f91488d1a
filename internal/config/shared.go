package config

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// maxShared limits the text of a setting that timerds exchange, in bytes.
const maxShared = 200

// Shared returns the settings that all timerds of one schedule must agree on, by variable. Equal settings have equal
// texts. A long text is cut, with a hash of the whole appended. It holds no secrets.
func (c Config) Shared() map[string]string {
	var namespaces []string
	for _, n := range c.Service.Namespaces {
		namespaces = append(namespaces, n.String())
	}
	slices.Sort(namespaces)
	shared := map[string]string{
		"NAMESPACES":       strings.Join(namespaces, ","),
		"RETRY":            c.Service.Retry.String(),
		"LATE":             c.Service.Late.String(),
		"GUARD":            c.Service.Guard.String(),
		"SWEEP_INTERVAL":   c.Service.SweepInterval.String(),
		"LEASE":            c.Service.Lease.String(),
		"MAX_PAYLOAD":      strconv.Itoa(c.Service.MaxPayload),
		"KEYSPACE_EVENTS":  showSwitch(c.Service.KeyspaceEvents),
		"PAYLOAD_ATTEMPT":  showSwitch(c.Service.PayloadAttempt),
		"EVENT_DATA":       cmp.Or(c.Service.EventData, "auto"),
		"SUBJECT_PREFIX":   c.NATS.Streams.SubjectPrefix(),
		"STREAM":           c.NATS.Streams.FiredStream(),
		"STREAM_MAX_AGE":   max(c.NATS.Streams.MaxAge, 0).String(),
		"STREAM_MAX_BYTES": strconv.FormatInt(c.NATS.Streams.MaxBytes, 10),
		"STREAM_REPLICAS":  strconv.Itoa(c.NATS.Streams.Replicas),
	}
	named := make(map[string]string, len(shared))
	for name, text := range shared {
		named[prefix+"_"+name] = abridge(text)
	}
	return named
}

// showSwitch is the inverse of parseSwitch.
func showSwitch(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// abridge cuts a long text.
func abridge(text string) string {
	if len(text) <= maxShared {
		return text
	}
	return fmt.Sprintf("%s… (%.8x)", strings.ToValidUTF8(text[:maxShared], ""), sha256.Sum256([]byte(text)))
}
