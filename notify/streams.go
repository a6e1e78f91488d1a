package notify

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/keys"
)

const (
	// firedMaxAge is how long a stream that EnsureStreams makes keeps firings by default.
	firedMaxAge = 7 * 24 * time.Hour
	// duplicateWindow is that of the streams that EnsureStreams makes.
	duplicateWindow = 2 * time.Minute
	// minMessageBytes is what NATS and the streams must let through: more than the longest key makes of an event
	// without data.
	minMessageBytes = 16 << 10

	defaultMinDuplicates = 30 * time.Second

	codeSubjectsOverlap jetstream.ErrorCode = 10065
	codeNoReplicas      jetstream.ErrorCode = 10074
)

// Streams says what the streams of timerd are called and how they are made. The zero value is the default.
type Streams struct {
	keys.Names
	// Replicas is how many servers of a NATS cluster keep each stream that is made, 1 if zero. A stream that is there
	// already keeps its own number.
	Replicas int
	// MaxAge is how long the stream of firings keeps them if it is made: 7 days if zero, for ever if negative. It must not
	// be shorter than 2 minutes, the duplicate window.
	MaxAge time.Duration
	// MaxBytes is how large that stream may become if it is made, without limit if zero. Then the oldest firings go first,
	// whether they were consumed or not.
	MaxBytes int64
	// Installation is the identity that the streams which are made get, and that the others must not contradict; see
	// Owners. Empty, it is not looked at.
	Installation string
	// MinDuplicates is the shortest duplicate window with which a stream of firings or dead letters is accepted, 30 s
	// if zero. It must be longer than the lease of a claim: until then a crashed timerd's firings are published again.
	MinDuplicates time.Duration
}

// configs returns the streams as they are made where missing.
func (s Streams) configs() []jetstream.StreamConfig {
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
	fired.MaxAge, fired.MaxBytes = max(cmp.Or(s.MaxAge, firedMaxAge), 0), s.MaxBytes
	retry.Name, retry.Subjects = s.RetryStream(), []string{s.SubjectAll(keys.Retry)}
	retry.Description = "timerd: requests to fire again"
	retry.Retention = jetstream.WorkQueuePolicy
	dead.Name, dead.Subjects = s.DeadStream(), []string{s.SubjectAll(keys.Dead)}
	dead.Description = "timerd: dead letters, kept until purged"
	return []jetstream.StreamConfig{fired, retry, dead}
}

// delivery returns the stream of what came of calls of HTTP endpoints, as it is made where missing.
func (s Streams) delivery() jetstream.StreamConfig {
	c := s.configs()[0]
	c.Name, c.Subjects = s.DeliveryStream(), []string{s.SubjectAll(keys.Delivery)}
	c.Description = "timerd: deliveries to HTTP endpoints"
	return c
}

// EnsureDeliveryStream is EnsureStreams for the stream of deliveries alone, which only timerd deliver needs. The stream
// of firings must be there: its installation is that of the new stream.
func EnsureDeliveryStream(ctx context.Context, js jetstream.JetStream, s Streams) error {
	s, err := s.ofFired(ctx, js)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return fmt.Errorf("JetStream has no stream %s: timerd makes it at its start; TIMERD_STREAM names another one", s.FiredStream())
	}
	if err != nil {
		return fmt.Errorf("stream %s: %w", s.FiredStream(), err)
	}
	return errors.Join(slices.DeleteFunc(s.ensure(ctx, js, s.delivery()), isWarning)...)
}

// CheckDeliveryStream is CheckStreams for the stream of deliveries alone, which EnsureDeliveryStream makes. info is nil
// where it is missing: then nothing is delivered to HTTP endpoints.
func CheckDeliveryStream(ctx context.Context, js jetstream.JetStream, s Streams) (info *jetstream.StreamInfo, faults []*StreamFault, err error) {
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
	return info, onlyFaults(s.faults(s.delivery(), info.Config)), nil
}

// ofFired returns s with the installation that the stream of firings belongs to.
func (s Streams) ofFired(ctx context.Context, js jetstream.JetStream) (Streams, error) {
	info, err := streamInfo(ctx, js, s.FiredStream())
	if err == nil {
		s.Installation = info.Config.Metadata[keys.InstallationMetadata]
	}
	return s, err
}

// StreamFault is one thing that is wrong with a stream, or with what NATS lets through.
type StreamFault struct {
	Stream  string // "" if it is about the NATS server
	Problem string
	Fix     string // what to do, mostly a command
	// Warning says that timerd works with it, but keeps less than it could.
	Warning bool
	// Owner is the installation that the stream belongs to, if the problem is that this is another one.
	Owner string
}

func (f *StreamFault) Error() string {
	where := "NATS server"
	if f.Stream != "" {
		where = "stream " + f.Stream
	}
	return fmt.Sprintf("%s: %s; to fix it: %s", where, f.Problem, f.Fix)
}

// EnsureStreams makes the streams that are missing. It uses one that is there as it is, if it does what timerd needs,
// and never changes it. Several timerds may call it at the same time. Of several installations that make the same
// streams at the same time, the one that makes the first stream makes them all: the others make none after the first
// that is another's. The error joins everything that stands in the way: a StreamFault says how to fix it, any other error
// is worth another try.
func EnsureStreams(ctx context.Context, js jetstream.JetStream, s Streams) error {
	faults := s.serverFaults(js)
	for _, want := range s.configs() {
		found := s.ensure(ctx, js, want)
		faults = append(faults, found...)
		if slices.ContainsFunc(found, isAnothers) {
			break
		}
	}
	return errors.Join(slices.DeleteFunc(faults, isWarning)...)
}

// CheckStreams tells what is wrong with the streams without changing anything. A missing stream is no fault: its name
// is in missing. The error means that NATS did not answer.
func CheckStreams(ctx context.Context, js jetstream.JetStream, s Streams) (faults []*StreamFault, missing []string, err error) {
	found := s.serverFaults(js)
	for _, want := range s.configs() {
		info, err := streamInfo(ctx, js, want.Name)
		switch {
		case errors.Is(err, jetstream.ErrStreamNotFound):
			missing = append(missing, want.Name)
		case err != nil:
			return nil, nil, fmt.Errorf("stream %s: %w", want.Name, err)
		default:
			found = append(found, s.faults(want, info.Config)...)
		}
	}
	return onlyFaults(found), missing, nil
}

// onlyFaults returns those of some errors that say how to fix them.
func onlyFaults(errs []error) (faults []*StreamFault) {
	for _, err := range errs {
		if fault, ok := errors.AsType[*StreamFault](err); ok {
			faults = append(faults, fault)
		}
	}
	return faults
}

func isWarning(err error) bool {
	fault, ok := errors.AsType[*StreamFault](err)
	return ok && fault.Warning
}

// streamInfo asks for a stream's configuration and state.
func streamInfo(ctx context.Context, js jetstream.JetStream, name string) (*jetstream.StreamInfo, error) {
	stream, err := js.Stream(ctx, name)
	if err != nil {
		return nil, err
	}
	return stream.CachedInfo(), nil
}

// serverFaults checks what the connected server lets through.
func (s Streams) serverFaults(js jetstream.JetStream) []error {
	if most := js.Conn().MaxPayload(); most > 0 && most < minMessageBytes {
		return []error{&StreamFault{
			Problem: fmt.Sprintf("max_payload is %d bytes, too small for the event of a long key", most),
			Fix:     fmt.Sprintf("set max_payload to %d or more in the server's configuration", minMessageBytes),
		}}
	}
	return nil
}

// ensure makes one stream or checks the one that is there.
func (s Streams) ensure(ctx context.Context, js jetstream.JetStream, want jetstream.StreamConfig) []error {
	info, err := streamInfo(ctx, js, want.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		_, err = js.CreateStream(ctx, want)
		var api *jetstream.APIError
		switch {
		case err == nil:
			return nil
		case errors.As(err, &api) && api.ErrorCode == codeSubjectsOverlap:
			return s.overlaps(ctx, js, want)
		case errors.As(err, &api) && api.ErrorCode == codeNoReplicas:
			return []error{&StreamFault{
				Stream:  want.Name,
				Problem: fmt.Sprintf("cannot be made with %d replicas: the NATS server is not part of a cluster", want.Replicas),
				Fix:     "set TIMERD_STREAM_REPLICAS to 1, or name the servers of a NATS cluster in TIMERD_NATS_URL",
			}}
		case errors.Is(err, jetstream.ErrStreamNameAlreadyInUse):
			info, err = streamInfo(ctx, js, want.Name)
		}
	}
	if err != nil {
		return []error{fmt.Errorf("stream %s: %w", want.Name, err)}
	}
	return s.faults(want, info.Config)
}

// overlaps names the streams that take the subjects of want.
func (s Streams) overlaps(ctx context.Context, js jetstream.JetStream, want jetstream.StreamConfig) []error {
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
		fix := "remove it, or set TIMERD_SUBJECT_PREFIX to a prefix that no stream takes"
		if len(keep) > 0 {
			fix = fmt.Sprintf("nats stream edit %s --subjects '%s', or set TIMERD_SUBJECT_PREFIX to a prefix that no stream takes",
				other.Config.Name, strings.Join(keep, ","))
		}
		faults = append(faults, &StreamFault{
			Stream: want.Name,
			Problem: fmt.Sprintf("cannot be made for %s, because stream %s takes %s",
				want.Subjects[0], other.Config.Name, strings.Join(other.Config.Subjects, ", ")),
			Fix: fix,
		})
	}
	if err := others.Err(); err != nil {
		faults = append(faults, fmt.Errorf("stream %s: another stream takes its subjects %s; looking for it: %w", want.Name, want.Subjects[0], err))
	}
	return faults
}

// faults compares the configuration of a stream with what timerd needs of it.
func (s Streams) faults(want, is jetstream.StreamConfig) []error {
	var faults []error
	add := func(warning bool, fix, problem string, args ...any) {
		faults = append(faults, &StreamFault{Stream: is.Name, Problem: fmt.Sprintf(problem, args...), Fix: fix, Warning: warning})
	}
	edit := "nats stream edit " + is.Name + " "
	another := fmt.Sprintf("nats stream rm %s, once nobody needs it, or set TIMERD_STREAM to another name", is.Name)

	switch {
	case is.Mirror != nil:
		add(false, another, "it mirrors stream %s, so nothing can be published to it", is.Mirror.Name)
	case !slices.ContainsFunc(is.Subjects, func(subject string) bool { return covers(subject, want.Subjects[0]) }):
		rest := slices.DeleteFunc(slices.Clone(is.Subjects), func(subject string) bool { return covers(want.Subjects[0], subject) })
		add(false, edit+"--subjects '"+strings.Join(append(rest, want.Subjects[0]), ",")+"'",
			"it takes %s, not %s", strings.Join(is.Subjects, ", "), want.Subjects[0])
	}
	if fault := s.Foreign(Owner{is.Name, is.Metadata[keys.InstallationMetadata]}); fault != nil {
		faults = append(faults, fault)
	}
	if is.Sealed {
		add(false, another, "it is sealed, so nothing can be published to it")
	}
	if is.AllowMsgCounter {
		add(false, another, "it is a counter, so it takes no events")
	}
	if is.NoAck {
		add(false, edit+"--ack", "it does not acknowledge messages")
	}
	if is.Retention != want.Retention {
		fix := edit + "--retention=" + retentionFlag(want.Retention)
		if is.Retention == jetstream.WorkQueuePolicy || want.Retention == jetstream.WorkQueuePolicy {
			fix = another
		}
		add(false, fix, "its retention is %s, want %s", is.Retention, want.Retention)
	}
	if is.DiscardNewPerSubject {
		add(false, edit+"--no-discard-per-subject", "it refuses messages subject by subject, so one full subject would hold up the timers of all")
	}
	if is.MaxMsgSize > 0 && is.MaxMsgSize < minMessageBytes {
		add(false, edit+"--max-msg-size=-1", "it takes messages of up to %d bytes, too few for the event of a long key", is.MaxMsgSize)
	}
	minDuplicates := cmp.Or(s.MinDuplicates, defaultMinDuplicates)
	limited := is.MaxAge > 0 || is.Discard == jetstream.DiscardOld && (is.MaxMsgs > 0 || is.MaxBytes > 0 || is.MaxMsgsPerSubject > 0)
	lossless := edit + "--max-age=0 --max-msgs=-1 --max-bytes=-1 --max-msgs-per-subject=-1"
	switch {
	case want.Retention == jetstream.WorkQueuePolicy:
		if limited {
			add(false, lossless, "its limits drop requests before they are carried out")
		}
	case is.Duplicates < minDuplicates:
		add(false, fmt.Sprintf("%s--dupe-window=%.0fm", edit, duplicateWindow.Minutes()),
			"its duplicate window is %s, want at least %s", is.Duplicates, minDuplicates)
	case want.Name == s.DeadStream() && limited:
		add(true, lossless, "its limits drop dead letters that nobody has looked at")
	}
	lost := "events that consumers have not received"
	if want.Name == s.DeliveryStream() {
		lost = "the log of deliveries"
		if is.Discard == jetstream.DiscardNew && (is.MaxMsgs > 0 || is.MaxBytes > 0) {
			add(true, edit+"--discard=old", "once it is full it takes no more, and deliveries wait for their log")
		}
	}
	if is.Storage != jetstream.FileStorage {
		add(true, another, "it is kept in memory, so a restart of NATS loses %s", lost)
	}
	return faults
}

// retentionFlag returns how the nats command spells a retention policy.
func retentionFlag(p jetstream.RetentionPolicy) string {
	if p == jetstream.WorkQueuePolicy {
		return "work"
	}
	return strings.ToLower(p.String())
}

// covers tells whether a subject with wildcards takes everything that want, with or without wildcards, stands for.
func covers(subject, want string) bool {
	s, w := strings.Split(subject, "."), strings.Split(want, ".")
	for i := range w {
		switch {
		case i >= len(s):
			return false
		case s[i] == ">":
			return true
		case w[i] == ">", s[i] != "*" && s[i] != w[i]:
			return false
		}
	}
	return len(s) == len(w)
}
