package schedule

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/keys"
)

// askedFor is the time for which a requested audit and its outcome are kept after the last change.
const askedFor = time.Minute

// AuditOutcome has the findings and repairs of a requested audit.
type AuditOutcome struct {
	Timers         int64 `json:"timers"`          // that the schedule has, 0 if not all were counted
	Restored       int64 `json:"restored"`        // timers and firings restored from their records
	WithoutPayload int64 `json:"without_payload"` // timers and firings whose record is lost
	// records of refused claims, and timers whose keys have lost their TTLs
	Dropped     int64 `json:"dropped"`
	Unknown     int64 `json:"unknown"`     // records without a timer; they stay
	Adopted     int64 `json:"adopted"`     // keys that the schedule did not have
	Rescheduled int64 `json:"rescheduled"` // timers whose keys have another TTL
	Cancelled   int64 `json:"cancelled"`   // timers whose keys were deleted, or have lost their TTLs
	Kept        int64 `json:"kept"`        // timers whose keys are gone for an unknown reason: they fire
	Unreadable  int64 `json:"unreadable"`  // keys that timerd may not read
}

// Add adds other to o.
func (o *AuditOutcome) Add(other AuditOutcome) {
	o.Timers += other.Timers
	o.Restored += other.Restored
	o.WithoutPayload += other.WithoutPayload
	o.Dropped += other.Dropped
	o.Unknown += other.Unknown
	o.Adopted += other.Adopted
	o.Rescheduled += other.Rescheduled
	o.Cancelled += other.Cancelled
	o.Kept += other.Kept
	o.Unreadable += other.Unreadable
}

// AuditProgress is a timerd's progress with a requested audit of a node.
type AuditProgress struct {
	Instance string        `json:"instance"` // the timerd
	Beat     int           `json:"beat"`     // grows while it is at work
	Doing    string        `json:"doing,omitempty"`
	Done     bool          `json:"done,omitempty"`
	Fault    string        `json:"fault,omitempty"` // why the last try failed; another one follows
	Took     time.Duration `json:"took,omitempty"`  // in ns
	Outcome  AuditOutcome  `json:"outcome,omitzero"`
}

// AskedAudits has recently requested audits, as [Schedule.AskedAudits] reads them.
type AskedAudits struct{ fields map[string]string }

// Of returns the id of the last requested audit of a node, or an empty one.
func (a AskedAudits) Of(node string) (id string) { return a.fields[node] }

// Progress returns the progress of an audit; known: a timerd has taken it on.
func (a AskedAudits) Progress(node, id string) (p AuditProgress, known bool) {
	text, known := a.fields[reportField(node, id)]
	return p, known && json.Unmarshal([]byte(text), &p) == nil
}

// AskAudit requests an audit of a node, under an id without a space that the caller chooses. The first in rank of the
// node's timerds takes it on within some seconds. It replaces an earlier request.
func (s *Schedule) AskAudit(ctx context.Context, node, id string) error {
	return s.changeAsked(ctx, "ask for an audit",
		func(pipe redis.Pipeliner, name string) { pipe.HSet(ctx, name, node, id) })
}

// TellAudit stores an audit's progress.
func (s *Schedule) TellAudit(ctx context.Context, node, id string, p AuditProgress) error {
	text, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("schedule: store the progress of an audit: %w", err)
	}
	return s.changeAsked(ctx, "store the progress of an audit",
		func(pipe redis.Pipeliner, name string) { pipe.HSet(ctx, name, reportField(node, id), text) })
}

// ForgetAudit withdraws the request for an audit of a node, and forgets its progress. A begun audit goes on.
func (s *Schedule) ForgetAudit(ctx context.Context, node, id string) error {
	asked, err := s.AskedAudits(ctx)
	if err != nil {
		return err
	}
	fields := []string{reportField(node, id)}
	if asked.Of(node) == id {
		fields = append(fields, node)
	}
	return s.changeAsked(ctx, "forget an audit",
		func(pipe redis.Pipeliner, name string) { pipe.HDel(ctx, name, fields...) })
}

// AskedAudits returns the recently requested audits.
func (s *Schedule) AskedAudits(ctx context.Context) (AskedAudits, error) {
	var found *redis.MapStringStringCmd
	err := s.Pipelined(ctx, keys.Single, func(pipe redis.Pipeliner) error {
		found = pipe.HGetAll(ctx, keys.Single.Asked())
		return nil
	})
	if err != nil {
		return AskedAudits{}, fmt.Errorf("schedule: read the audits that were asked for: %w", s.blame(keys.Single, err))
	}
	return AskedAudits{found.Val()}, nil
}

// changeAsked changes the hash of requested audits, and keeps it for askedFor.
func (s *Schedule) changeAsked(ctx context.Context, what string, change func(redis.Pipeliner, string)) error {
	err := s.Pipelined(ctx, keys.Single, func(pipe redis.Pipeliner) error {
		change(pipe, keys.Single.Asked())
		pipe.PExpire(ctx, keys.Single.Asked(), askedFor)
		return nil
	})
	if err != nil {
		return fmt.Errorf("schedule: %s: %w", what, s.blame(keys.Single, err))
	}
	return nil
}
