package streams

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// noSequence is of no message: a request to delete it changes nothing.
const noSequence = 1 << 62

// refusedFor is for how long a question is not asked again that the user may not ask: the server logs each refusal.
const refusedFor = 10 * time.Minute

// pathError matches an error of a file, such as "write /data/1.blk: no space left on device".
var pathError = regexp.MustCompile(`^[a-z]+ .*[/\\].*: .+`)

// WriteErrors asks a NATS server which streams it cannot write. The zero value has asked nothing. Its methods may be
// called concurrently.
type WriteErrors struct {
	mu      sync.Mutex
	refused map[string]time.Time // by stream: when the right to ask was missing last
}

// Of returns a Fault if a write to a stream's file has failed: then the server answers no event, and everything else
// as if nothing were wrong, until it is restarted. It asks for the deletion of a message that cannot be there, which
// fails by that error first. nil means that there is none, or that it is not known: without the right to ask, before
// nats-server 2.14, which does not keep the error, and for a stream with replicas. There the deletion goes through
// Raft, and servers before 2.11.10 and 2.12.1 reset the stream on all replicas by it.
func (w *WriteErrors) Of(ctx context.Context, js jetstream.JetStream, stream string) error {
	if !keepsWriteErrors(js.Conn().ConnectedServerVersion()) || w.isRefused(stream) {
		return nil
	}
	if s, err := js.Stream(ctx, stream); err != nil || s.CachedInfo().Config.Replicas > 1 {
		return nil //nolint:nilerr // other checks tell of a stream that does not answer
	}
	subject := "STREAM.MSG.DELETE." + stream
	err := ask(ctx, js, subject, map[string]any{"seq": noSequence, "no_erase": true}, nil)
	failed, answered := errors.AsType[*jetstream.APIError](err)
	if last := js.Conn().LastError(); !answered && errors.Is(last, nats.ErrPermissionViolation) && strings.Contains(last.Error(), subject) {
		w.refuse(stream) // which the server tells beside, and never answers
	}
	if !answered || !pathError.MatchString(failed.Description) {
		return nil
	}
	return &Fault{Stream: stream, What: "the NATS server cannot write it, and answers no message: " + failed.Description, Remedy: diskFix}
}

// isRefused reports whether the right to ask about a stream was missing lately.
func (w *WriteErrors) isRefused(stream string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	at, ok := w.refused[stream]
	return ok && time.Since(at) < refusedFor
}

// refuse notes that the right to ask about a stream is missing.
func (w *WriteErrors) refuse(stream string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.refused == nil {
		w.refused = map[string]time.Time{}
	}
	w.refused[stream] = time.Now()
}

// keepsWriteErrors reports whether a server of a version answers with the error of an earlier write.
func keepsWriteErrors(version string) bool {
	const major, minor = 2, 14
	hasMajor, hasMinor, ok := parseVersion(version)
	return ok && atLeast(hasMajor, hasMinor, major, minor)
}
