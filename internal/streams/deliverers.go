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

// DelivererPause is how often a process of timerd deliver says what keeps it from delivering, while something does. What it said is
// forgotten once it has said nothing for longer.
const (
	DelivererPause = 5 * time.Second
	delivererAge   = 4 * DelivererPause
)

// Deliverer is a process of timerd deliver that something keeps from delivering.
type Deliverer struct {
	Instance string    `json:"instance"`
	Circuits []Circuit `json:"circuits,omitempty"`
	Outdated *Outdated `json:"outdated,omitempty"` // nil: its group uses its file
}

// Circuit is a host that a process does not call because it fails.
type Circuit struct {
	Host       string    `json:"host"`
	Since      time.Time `json:"since"`
	Namespaces []string  `json:"namespaces,omitempty"` // of deliveries that were put off, in order; some of many
	Postponed  int64     `json:"postponed"`            // how often one was put off since then
	Error      string    `json:"error,omitempty"`      // of the last call; "" if none has ended since then
}

// Outdated says that a process takes no events, because its group uses another file than its own.
type Outdated struct {
	Group   string    `json:"group"`
	File    string    `json:"file"` // by which the group goes: the beginning of its SHA-256
	Version uint64    `json:"version,omitempty"`
	By      string    `json:"by"` // on which host it was read first
	Changed time.Time `json:"changed"`
	// Touch says that the process's file counts once it has a newer time; else it needs a version over the other's.
	Touch bool `json:"touch,omitempty"`
}

// delivererSubject returns where the process of an instance id says it.
func delivererSubject(n keys.Names, instance string) string {
	return stateSubject(n, "deliver", instance)
}

// SayDeliverer says what keeps a process from delivering.
func SayDeliverer(ctx context.Context, js jetstream.JetStream, s Config, d Deliverer) error {
	text, err := json.Marshal(d)
	if err == nil {
		_, err = js.Publish(ctx, delivererSubject(s.Names, d.Instance), text, jetstream.WithRetryAttempts(0))
	}
	return err
}

// ReadDeliverers returns the processes that something keeps from delivering, in the order of their instance ids.
func ReadDeliverers(ctx context.Context, js jetstream.JetStream, s Config) ([]Deliverer, error) {
	all, err := readSaid[Deliverer](ctx, js, s, "deliver", delivererAge)
	slices.SortFunc(all, func(a, b Deliverer) int { return strings.Compare(a.Instance, b.Instance) })
	return all, err
}
