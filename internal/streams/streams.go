// Package streams has timerd's JetStream streams: their creation, their required settings, and their owners.
//
// An installation is one Redis with the timerds that serve it. Its identity is in a key of Redis, and in the metadata
// of its streams. Two installations on the same streams would drop each other's firings as duplicates and take each
// other's retry requests, so [Join] keeps them apart:
//
//	Redis | streams | at the start
//	------|---------|-------------
//	none  | none    | an identity is made
//	A     | none    | the streams are marked
//	none  | A       | Redis gets it; or one of its own, if a timerd of A answers over NATS that serves another Redis
//	A     | A       | goes on
//	A     | B       | refused
//
// While timerd runs, it checks both sides again and again, and gives an identity back to a side that has lost it.
package streams

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/deadletter"
	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/keys"
)

const (
	// firedMaxAge is the default age limit of firings in a stream created by Ensure.
	firedMaxAge = 7 * 24 * time.Hour
	// duplicateWindow is the duplicate window of streams created by Ensure.
	duplicateWindow = 2 * time.Minute
	// minMessageBytes is the message size that NATS and the streams must allow: over that of an event with the longest
	// key and no data.
	minMessageBytes = 16 << 10

	defaultMinDuplicates = 30 * time.Second

	codeSubjectsOverlap jetstream.ErrorCode = 10065
	codeNoReplicas      jetstream.ErrorCode = 10074
	codeNoPeers         jetstream.ErrorCode = 10005
)

// Config has the names and settings of timerd's streams. The zero value is the default.
type Config struct {
	keys.Names
	// Replicas is the number of NATS servers that keep each created stream, 1 if zero. An existing stream keeps its own
	// number.
	Replicas int
	// MaxAge is the age limit of a created stream of firings: 7 days if zero, none if negative. It must not be shorter
	// than 2 minutes, the duplicate window.
	MaxAge time.Duration
	// MaxBytes limits a created stream of firings; zero means no limit. At the limit the oldest firings go first,
	// consumed or not. If the account demands a limit of every stream, the others get a part of MaxBytes, and accept no
	// more messages once full.
	MaxBytes int64
	// Installation is the identity for created streams; existing ones must not have another one; see [Join]. Empty
	// means not checked.
	Installation string
	// MinDuplicates is the shortest accepted duplicate window of the streams of firings and dead letters, 30 s if zero.
	// It must be longer than the lease of a claim: until the lease ends, a crashed timerd's firings are published
	// again.
	MinDuplicates time.Duration
}

// minDuplicates returns MinDuplicates, or its default.
func (s Config) minDuplicates() time.Duration { return cmp.Or(s.MinDuplicates, defaultMinDuplicates) }

// configs returns the streams, as created if missing.
func (s Config) configs() []jetstream.StreamConfig {
	common := jetstream.StreamConfig{
		Storage:     jetstream.FileStorage,
		Replicas:    max(s.Replicas, 1),
		Duplicates:  duplicateWindow,
		AllowDirect: true,
	}
	if s.Installation != "" {
		common.Metadata = map[string]string{keys.InstallationMetadata: s.Installation}
	}
	fired, retry, dead := common, common, common
	fired.Name, fired.Subjects = s.FiredStream(), []string{s.SubjectAll(keys.Fired)}
	fired.Description = "timerd: firings of timers"
	fired.AllowAtomicPublish = true // ignored by a server too old for it
	fired.MaxAge, fired.MaxBytes = max(cmp.Or(s.MaxAge, firedMaxAge), 0), s.MaxBytes
	retry.Name, retry.Subjects = s.RetryStream(), []string{s.SubjectAll(keys.Retry)}
	retry.Description = "timerd: requests to fire again"
	retry.Retention = jetstream.WorkQueuePolicy
	dead.Name, dead.Subjects = s.DeadStream(), []string{s.SubjectAll(keys.Dead)}
	dead.Description = "timerd: dead letters, kept until purged"
	return []jetstream.StreamConfig{fired, retry, dead}
}

// delivery returns the stream of the results of webhook calls, as created if missing.
func (s Config) delivery() jetstream.StreamConfig {
	c := s.configs()[0]
	c.AllowAtomicPublish = false
	c.Name, c.Subjects = s.DeliveryStream(), []string{s.SubjectAll(keys.Delivery)}
	c.Description = "timerd: deliveries to HTTP endpoints"
	return c
}

// EnsureDelivery is Ensure for the stream of deliveries alone, which only timerd deliver needs. The stream
// of firings must be there: its installation is that of the new stream.
func EnsureDelivery(ctx context.Context, js jetstream.JetStream, s Config) error {
	s, err := s.ofFired(ctx, js)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return fmt.Errorf("JetStream has no stream %s: timerd makes it at its start; TIMERD_STREAM names another one",
			s.FiredStream())
	}
	if err != nil {
		return fmt.Errorf("stream %s: %w", s.FiredStream(), err)
	}
	return errors.Join(s.ensure(ctx, js, s.delivery())...)
}

// CheckDelivery is Check for the stream of deliveries alone, which EnsureDelivery creates. info is nil if it is
// missing: then nothing is delivered to HTTP endpoints.
func CheckDelivery(ctx context.Context, js jetstream.JetStream,
	s Config) (info *jetstream.StreamInfo, faults []*Fault, err error) {
	info, err = streamInfo(ctx, js, s.DeliveryStream())
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, nil, nil
	}
	if err == nil {
		s, err = s.ofFired(ctx, js)
	}
	if err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, nil, fmt.Errorf("stream %s: %w", s.DeliveryStream(), err)
	}
	return info, s.faults(s.delivery(), info.Config), nil
}

// ofFired returns s with Installation set to the owner of the stream of firings.
func (s Config) ofFired(ctx context.Context, js jetstream.JetStream) (Config, error) {
	info, err := streamInfo(ctx, js, s.FiredStream())
	if err == nil {
		s.Installation = info.Config.Metadata[keys.InstallationMetadata]
	}
	return s, err
}

// Fault is one fault of a stream, or of a NATS server's limits.
type Fault struct {
	Stream string // "" if it is about the NATS server
	What   string // the problem
	Remedy string // what to do, mostly a command
	// Warning means that timerd works, but with less protection.
	Warning bool
	// Owner is the stream's installation, if the fault is that it belongs to another one.
	Owner string
}

func (f *Fault) Error() string { return diag.Text(f) }

// Fix implements [diag.Fixable].
func (f *Fault) Fix() string { return f.Remedy }

// Problem implements [diag.Fixable].
func (f *Fault) Problem() string {
	if f.Stream == "" {
		return "NATS server: " + f.What
	}
	return "stream " + f.Stream + ": " + f.What
}

// Finding returns the fault as a check's finding.
func (f *Fault) Finding(check string) diag.Finding {
	found := diag.Finding{Level: diag.Fail, Check: check, Text: f.What, Fix: f.Remedy}
	if f.Warning {
		found.Level = diag.Warn
	}
	if f.Stream != "" {
		found.Text = f.Stream + ": " + f.What
	}
	return found
}

// Ensure creates missing streams. It never changes an existing one, and accepts it if it fits. Several timerds may call
// it at the same time. If several installations create the same streams at the same time, the creator of the first
// stream creates them all: the others stop at the first stream that is another's. The error joins all obstacles: a
// Fault has its fix, any other error is worth another try.
func Ensure(ctx context.Context, js jetstream.JetStream, s Config) error {
	faults := blocking(s.serverFaults(js))
	for _, want := range s.configs() {
		found := s.ensure(ctx, js, want)
		for _, err := range found {
			if !slices.ContainsFunc(faults, func(other error) bool { return other.Error() == err.Error() }) {
				// one limit may refuse several streams
				faults = append(faults, err)
			}
		}
		if slices.ContainsFunc(found, isAnothers) {
			break
		}
	}
	return errors.Join(faults...)
}

// Bury publishes an event as a dead letter and waits until it is stored. It tries once. If the stream is missing, it
// creates it, so that the next try may work.
func Bury(ctx context.Context, js jetstream.JetStream, s Config, e event.Event) error {
	err := deadletter.Publish(ctx, js, s.SubjectPrefix(), e, jetstream.WithExpectStream(s.DeadStream()),
		jetstream.WithRetryAttempts(0))
	if errors.Is(err, jetstream.ErrNoStreamResponse) {
		err = errors.Join(err, Ensure(ctx, js, s))
	}
	return err
}

// Check returns the faults of the streams, and changes nothing. A missing stream is no fault: its name is in missing.
// The error means that NATS did not answer.
func Check(ctx context.Context, js jetstream.JetStream, s Config) (faults []*Fault, missing []string, err error) {
	faults = s.serverFaults(js)
	for _, want := range s.configs() {
		info, err := streamInfo(ctx, js, want.Name)
		switch {
		case errors.Is(err, jetstream.ErrStreamNotFound):
			missing = append(missing, want.Name)
		case err != nil:
			return nil, nil, fmt.Errorf("stream %s: %w", want.Name, err)
		default:
			faults = append(faults, s.faults(want, info.Config)...)
			if is := info.Config; want.AllowAtomicPublish && !is.AllowAtomicPublish &&
				is.Storage == jetstream.FileStorage && TakesBatches(js) {
				faults = append(faults, &Fault{
					Stream: want.Name, Warning: true, Remedy: "nats stream edit " + want.Name +
						" --allow-batch --force",
					What: "it takes no batches, so where NATS syncs each message to disk firings may wait for it",
				})
			}
		}
	}
	return faults, missing, nil
}

// blocking returns the faults that keep timerd from working.
func blocking(faults []*Fault) (errs []error) {
	for _, fault := range faults {
		if !fault.Warning {
			errs = append(errs, fault)
		}
	}
	return errs
}

// streamInfo asks for a stream's configuration and state.
func streamInfo(ctx context.Context, js jetstream.JetStream, name string) (*jetstream.StreamInfo, error) {
	stream, err := js.Stream(ctx, name)
	if err != nil {
		return nil, err
	}
	return stream.CachedInfo(), nil
}

// serverFaults checks the connected server's limits.
func (s Config) serverFaults(js jetstream.JetStream) []*Fault {
	if most := js.Conn().MaxPayload(); most > 0 && most < minMessageBytes {
		return []*Fault{{
			What:   fmt.Sprintf("max_payload is %d bytes, too small for the event of a long key", most),
			Remedy: fmt.Sprintf("set max_payload to %d or more in the server's configuration", minMessageBytes),
		}}
	}
	return nil
}

// ensure creates one stream, or checks the existing one. It returns the obstacles.
func (s Config) ensure(ctx context.Context, js jetstream.JetStream, want jetstream.StreamConfig) []error {
	info, err := streamInfo(ctx, js, want.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		err = s.create(ctx, js, want)
		fault, refused := errors.AsType[*Fault](err)
		switch code := codeOf(err); {
		case err == nil:
			return nil
		case refused:
			return []error{fault}
		case code == codeSubjectsOverlap:
			return s.overlaps(ctx, js, want)
		case code == codeNoReplicas:
			return []error{&Fault{
				Stream: want.Name,
				What: fmt.Sprintf("cannot be made with %d replicas: the NATS server is not part of a cluster",
					want.Replicas),
				Remedy: "set TIMERD_STREAM_REPLICAS to 1, or name the servers of a NATS cluster in TIMERD_NATS_URL",
			}}
		case errors.Is(err, jetstream.ErrStreamNameAlreadyInUse):
			info, err = streamInfo(ctx, js, want.Name)
		}
	}
	if err != nil {
		return []error{fmt.Errorf("stream %s: %w", want.Name, err)}
	}
	return blocking(s.faults(want, info.Config))
}

// overlaps names the streams that take the subjects of want.
func (s Config) overlaps(ctx context.Context, js jetstream.JetStream, want jetstream.StreamConfig) []error {
	var faults []error
	others := js.ListStreams(ctx, jetstream.WithStreamListSubject(want.Subjects[0]))
	for other := range others.Info() {
		keep := slices.DeleteFunc(slices.Clone(other.Config.Subjects), func(subject string) bool {
			return covers(subject, want.Subjects[0]) || covers(want.Subjects[0], subject)
		})
		for _, own := range s.configs() {
			if own.Name == other.Config.Name && !slices.Contains(keep, own.Subjects[0]) {
				keep = append(keep, own.Subjects[0])
			}
		}
		fix := "set TIMERD_SUBJECT_PREFIX to a prefix that no stream takes; or remove the other stream"
		if len(keep) > 0 {
			fix = fmt.Sprintf("set TIMERD_SUBJECT_PREFIX to a prefix that no stream takes; or, to take them from the "+
				"other stream: nats stream edit %s --subjects '%s' --force",
				other.Config.Name, strings.Join(keep, ","))
		}
		faults = append(faults, &Fault{
			Stream: want.Name,
			What: fmt.Sprintf("cannot be made for %s, because stream %s takes %s",
				want.Subjects[0], other.Config.Name, strings.Join(other.Config.Subjects, ", ")),
			Remedy: fix,
		})
	}
	if err := others.Err(); err != nil {
		faults = append(faults, fmt.Errorf("stream %s: another stream takes its subjects %s; looking for it: %w",
			want.Name, want.Subjects[0], err))
	}
	return faults
}
