package streams

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/keys"
)

// DelivererPause is the interval at which a process of timerd deliver repeats its report of failures. A report that is
// not repeated for longer expires.
const (
	DelivererPause = 5 * time.Second
	delivererAge   = 4 * DelivererPause
)

// Deliverer is the report of a process of timerd deliver that cannot deliver to some hosts, or at all.
type Deliverer struct {
	Instance string    `json:"instance"`
	Circuits []Circuit `json:"circuits,omitempty"`
	Outdated *Outdated `json:"outdated,omitempty"` // nil: its group uses its file
}

// Circuit is a failing host that a process does not call for now.
type Circuit struct {
	Host       string    `json:"host"`
	Since      time.Time `json:"since"`
	Next       time.Time `json:"next,omitzero"`        // no call before that; then one call, the probe, decides
	Namespaces []string  `json:"namespaces,omitempty"` // of postponed deliveries, in order; not all if there are many
	Postponed  int64     `json:"postponed"`            // number of postponements since then
	Error      string    `json:"error,omitempty"`      // of the last call; "" if none has ended since then
}

// Outdated means that a process takes no events, because its group uses another file.
type Outdated struct {
	Group   string    `json:"group"`
	File    string    `json:"file"` // the group's file: the beginning of its SHA-256
	Version uint64    `json:"version,omitempty"`
	By      string    `json:"by"` // the host that read it first
	Changed time.Time `json:"changed"`
	// Touch means that a newer modification time makes the process's file count; otherwise it needs a higher version.
	Touch bool `json:"touch,omitempty"`
}

// delivererSubject returns the subject for the report of the process with an instance id.
func delivererSubject(n keys.Names, instance string) string {
	return stateSubject(n, "deliver", instance)
}

// StoreDeliverer stores a process's report.
func StoreDeliverer(ctx context.Context, js jetstream.JetStream, s Config, d Deliverer) error {
	text, err := json.Marshal(d)
	if err == nil {
		_, err = js.Publish(ctx, delivererSubject(s.Names, d.Instance), text, jetstream.WithRetryAttempts(0))
	}
	return err
}

// ReadDeliverers returns the reports of all processes, in the order of their instance ids.
func ReadDeliverers(ctx context.Context, js jetstream.JetStream, s Config) ([]Deliverer, error) {
	all, err := readReports[Deliverer](ctx, js, s, "deliver", delivererAge)
	slices.SortFunc(all, func(a, b Deliverer) int { return strings.Compare(a.Instance, b.Instance) })
	return all, err
}
