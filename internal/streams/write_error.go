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

// noSequence is no message's sequence: a request to delete it changes nothing.
const noSequence = 1 << 62

// refusedFor is the pause after a question without the right to it: the server logs each refusal.
const refusedFor = 10 * time.Minute

// pathError matches an error of a file, such as "write /data/1.blk: no space left on device".
var pathError = regexp.MustCompile(`^[a-z]+ .*[/\\].*: .+`)

// WriteErrors finds the streams that a NATS server cannot write. The zero value is ready. Its methods may be called
// concurrently.
type WriteErrors struct {
	mu      sync.Mutex
	refused map[string]time.Time // by stream: time of the last refused question
}

// Of returns a Fault if a write to a stream's file has failed: until its restart, the server then answers no event, and
// everything else as usual. Of requests the deletion of a message that cannot exist, and the server reports the write
// error first. nil means no error, or an unknown one: without the right to ask, before nats-server 2.14, which does not
// keep the error, and for a stream with replicas. There the deletion goes through Raft, and makes servers before
// 2.11.10 and 2.12.1 reset the stream on all replicas.
func (w *WriteErrors) Of(ctx context.Context, js jetstream.JetStream, stream string) error {
	if !keepsWriteErrors(js.Conn().ConnectedServerVersion()) || w.isRefused(stream) {
		return nil
	}
	if s, err := js.Stream(ctx, stream); err != nil || s.CachedInfo().Config.Replicas > 1 {
		return nil //nolint:nilerr // other checks report a silent stream
	}
	subject := "STREAM.MSG.DELETE." + stream
	err := ask(ctx, js, subject, map[string]any{"seq": noSequence, "no_erase": true}, nil)
	failed, answered := errors.AsType[*jetstream.APIError](err)
	if last := js.Conn().LastError(); !answered && errors.Is(last, nats.ErrPermissionViolation) &&
		strings.Contains(last.Error(), subject) {
		w.refuse(stream) // the server reports it on the connection, and never answers
	}
	if !answered || !pathError.MatchString(failed.Description) {
		return nil
	}
	return &Fault{Stream: stream, What: "the NATS server cannot write it, and answers no message: " +
		failed.Description, Remedy: diskFix}
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
