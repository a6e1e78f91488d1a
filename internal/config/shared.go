package config

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// maxShared bounds the text of a setting that timerds tell each other, in bytes.
const maxShared = 200

// Shared returns the settings that all timerds of one schedule are to have in common, by variable. What means the same is
// the same text. A long text is cut, with a hash of the whole behind it. It holds no secrets.
func (c Config) Shared() map[string]string {
	var namespaces []string
	for _, n := range c.Service.Namespaces {
		namespaces = append(namespaces, n.String())
	}
	slices.Sort(namespaces)
	events := "off"
	if c.Service.KeyspaceEvents {
		events = "on"
	}
	shared := map[string]string{
		"NAMESPACES":      strings.Join(namespaces, ","),
		"RETRY":           c.Service.Retry.String(),
		"SWEEP_INTERVAL":  c.Service.SweepInterval.String(),
		"LEASE":           c.Service.Lease.String(),
		"MAX_PAYLOAD":     strconv.Itoa(c.Service.MaxPayload),
		"KEYSPACE_EVENTS": events,
		"SUBJECT_PREFIX":  c.NATS.Streams.SubjectPrefix(),
		"STREAM":          c.NATS.Streams.FiredStream(),
	}
	named := make(map[string]string, len(shared))
	for name, text := range shared {
		named[prefix+"_"+name] = abridge(text)
	}
	return named
}

// abridge cuts a long text.
func abridge(text string) string {
	if len(text) <= maxShared {
		return text
	}
	return fmt.Sprintf("%s… (%.8x)", strings.ToValidUTF8(text[:maxShared], ""), sha256.Sum256([]byte(text)))
}
