package streams

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/keys"
)

// fullSlack is the room beside a payload that a full stream must have before events are published to it again.
const fullSlack = 4 << 10

// Fired looks at the stream of firings. The error is the reason why it takes no event with payloadBytes of payload: a
// Fault, jetstream.ErrStreamNotFound, or a missing answer. info is nil in the last two cases only.
func Fired(ctx context.Context, js jetstream.JetStream, s Config,
	payloadBytes int) (info *jetstream.StreamInfo, err error) {
	want := s.configs()[0]
	if info, err = streamInfo(ctx, js, want.Name); err != nil {
		return nil, diag.Wrap("JetStream does not answer about stream "+want.Name, Explained(ctx, js, err))
	}
	if faults := blocking(s.faults(want, info.Config)); len(faults) > 0 {
		return info, faults[0]
	}
	if Leaderless(info) {
		return info, &Fault{Stream: info.Config.Name, What: "it has no leader, so it takes nothing",
			Remedy: NoLeaderFix}
	}
	return info, Fullness(info, payloadBytes, 0)
}

// NoLeaderFix is the fix for a stream without a leader.
const NoLeaderFix = "bring the NATS servers of its cluster back"

// Leaderless reports whether no server of its cluster leads a stream, so that it takes nothing.
func Leaderless(info *jetstream.StreamInfo) bool {
	return info.Cluster != nil && info.Cluster.Name != "" && info.Config.Replicas > 1 && info.Cluster.Leader == ""
}

// Fullness returns a Fault if a stream is too full for an event with payloadBytes of payload. Its fix doubles the
// limit, or makes room for twice the backlog, if that is more. backlog is the number of messages that wait for room, 0
// if unknown.
func Fullness(info *jetstream.StreamInfo, payloadBytes int, backlog int64) error {
	c, s := info.Config, info.State
	if c.Discard != jetstream.DiscardNew || s.Msgs == 0 {
		return nil
	}
	raise := func(limit string, to int64, unit string) string {
		return fmt.Sprintf("raise its limit, which loses nothing: nats stream edit %s --%s=%d%s --force", c.Name, limit,
			to, unit)
	}
	if c.MaxMsgs > 0 && s.Msgs >= uint64(c.MaxMsgs) {
		return &Fault{Stream: c.Name, What: fmt.Sprintf("it is full: %d messages of at most %d", s.Msgs, c.MaxMsgs),
			Remedy: raise("max-msgs", c.MaxMsgs+max(c.MaxMsgs, 2*backlog), "")}
	}
	if c.MaxBytes > 0 && s.Bytes+uint64(payloadBytes)+fullSlack > uint64(c.MaxBytes) {
		// In KB: the nats command takes no number of bytes beyond 2^31.
		waiting := 2 * backlog * int64(s.Bytes/s.Msgs)
		more := c.MaxBytes + max(c.MaxBytes, waiting) + int64(payloadBytes) + fullSlack
		return &Fault{Stream: c.Name, What: fmt.Sprintf("it is full: %d bytes of at most %d", s.Bytes, c.MaxBytes),
			Remedy: raise("max-bytes", more/1024+1, "KB")}
	}
	return nil
}

// faults compares the configuration of a stream with timerd's requirements.
func (s Config) faults(want, is jetstream.StreamConfig) (faults []*Fault) {
	add := func(warning bool, fix, problem string, args ...any) {
		faults = append(faults, &Fault{Stream: is.Name, What: fmt.Sprintf(problem, args...), Remedy: fix,
			Warning: warning})
	}
	edit := func(flags string) string { return "nats stream edit " + is.Name + " " + flags + " --force" }
	another := "set TIMERD_STREAM to another name; or, once nobody needs this one: nats stream rm " + is.Name

	switch {
	case is.Mirror != nil:
		add(false, another, "it mirrors stream %s, so nothing can be published to it", is.Mirror.Name)
	case !slices.ContainsFunc(is.Subjects, func(subject string) bool { return covers(subject, want.Subjects[0]) }):
		rest := slices.DeleteFunc(slices.Clone(is.Subjects),
			func(subject string) bool { return covers(want.Subjects[0], subject) })
		add(false, edit("--subjects '"+strings.Join(append(rest, want.Subjects[0]), ",")+"'"),
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
		add(false, edit("--ack"), "it does not acknowledge messages")
	}
	if is.Retention != want.Retention {
		fix := edit("--retention=" + retentionFlag(want.Retention))
		if is.Retention == jetstream.WorkQueuePolicy || want.Retention == jetstream.WorkQueuePolicy {
			fix = another
		}
		add(false, fix, "its retention is %s, want %s", is.Retention, want.Retention)
	}
	if is.DiscardNewPerSubject {
		add(false, edit("--no-discard-per-subject"),
			"it refuses messages subject by subject, so one full subject would hold up the timers of all")
	}
	if is.MaxMsgSize > 0 && is.MaxMsgSize < minMessageBytes {
		add(false, edit("--max-msg-size=-1"),
			"it takes messages of up to %d bytes, too few for the event of a long key", is.MaxMsgSize)
	}
	minDuplicates := s.minDuplicates()
	limited := is.MaxAge > 0 || is.Discard == jetstream.DiscardOld &&
		(is.MaxMsgs > 0 || is.MaxBytes > 0 || is.MaxMsgsPerSubject > 0)
	lossless := edit("--max-age=0 --max-msgs=-1 --max-bytes=-1 --max-msgs-per-subject=-1")
	switch {
	case want.Retention == jetstream.WorkQueuePolicy:
		if limited {
			add(false, lossless, "its limits drop requests before they are carried out")
		}
	case is.Duplicates < minDuplicates:
		add(false, edit(fmt.Sprintf("--dupe-window=%.0fm", duplicateWindow.Minutes())),
			"its duplicate window is %s, want at least %s", diag.Duration(is.Duplicates), diag.Duration(minDuplicates))
	case want.Name == s.DeadStream() && limited:
		add(true, lossless, "its limits drop dead letters before anybody has looked at them")
	}
	lost := "events that consumers have not received"
	if want.Name == s.DeliveryStream() {
		lost = "the log of deliveries"
		if is.Discard == jetstream.DiscardNew && (is.MaxMsgs > 0 || is.MaxBytes > 0) {
			add(true, edit("--discard=old"), "once it is full it takes no more, and deliveries wait for their log")
		}
	}
	if is.Storage != jetstream.FileStorage {
		add(true, another, "it is kept in memory, so a restart of NATS loses %s", lost)
	}
	return faults
}

// retentionFlag returns a retention policy in the nats command's spelling.
func retentionFlag(p jetstream.RetentionPolicy) string {
	if p == jetstream.WorkQueuePolicy {
		return "work"
	}
	return strings.ToLower(p.String())
}

// covers reports whether a subject with wildcards takes every subject that want stands for.
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
