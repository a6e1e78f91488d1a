package streams

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/diag"
)

// Error codes for a stream refused by the limits of an account or of the server.
const (
	codeMaxStreams       jetstream.ErrorCode = 10027
	codeNoStorage        jetstream.ErrorCode = 10047
	codeInvalidConfig    jetstream.ErrorCode = 10052 // the duplicate window exceeds the server's limit, among others
	codeMaxBytesRequired jetstream.ErrorCode = 10113
	codeMaxStreamBytes   jetstream.ErrorCode = 10122
)

const (
	// minShare is the least limit in bytes of a stream that gets one only if the account demands it. mostState is the
	// highest limit of the stream of an installation's own state, which takes some KB.
	minShare  = 1 << 20
	mostState = 16 << 20
	// sideShare and stateShare divide TIMERD_STREAM_MAX_BYTES into the limit of each of the streams of retries and dead
	// letters, and of the stream of the state: the account reserves the limits of all its streams.
	sideShare  = 4
	stateShare = 16
)

// create creates a stream. If a limit of the account or the server refuses it, create uses the most that the limit
// allows. The error is a [*Fault] if timerd cannot work within the limit.
func (s Config) create(ctx context.Context, js jetstream.JetStream, want jetstream.StreamConfig) error {
	for {
		_, err := js.CreateStream(ctx, want)
		less, ok := s.within(want, codeOf(err))
		if !ok {
			return s.explainLimit(ctx, js, want, err)
		}
		want = less
	}
}

// within returns a smaller stream that a limit may allow after refusing the wanted one; false if there is none.
func (s Config) within(want jetstream.StreamConfig, refused jetstream.ErrorCode) (jetstream.StreamConfig, bool) {
	switch {
	case refused == codeMaxBytesRequired && want.MaxBytes <= 0 && s.MaxBytes > 0:
		want.MaxBytes, want.Discard = s.share(want.Name), jetstream.DiscardNew // a full stream drops nothing
	case refused == codeInvalidConfig && want.Duplicates > s.minDuplicates():
		want.Duplicates = s.minDuplicates()
	default:
		return want, false
	}
	return want, true
}

// share returns the limit in bytes of a stream that gets one only if the account demands it.
func (s Config) share(stream string) int64 {
	if stream == s.StateStream() {
		return min(max(s.MaxBytes/stateShare, minShare), mostState)
	}
	return max(s.MaxBytes/sideShare, minShare)
}

// codeOf returns JetStream's error code, 0 if the error has none.
func codeOf(err error) jetstream.ErrorCode {
	if refused, ok := errors.AsType[*jetstream.APIError](err); ok {
		return refused.ErrorCode
	}
	return 0
}

// explainLimit returns a Fault if a limit refused the stream, else err. One limit gives equal Faults for all streams.
func (s Config) explainLimit(ctx context.Context, js jetstream.JetStream, want jetstream.StreamConfig,
	err error) error {
	switch code := codeOf(err); {
	case code == codeMaxBytesRequired:
		return &Fault{
			What: "the account demands a limit in bytes of every stream (max_bytes_required)",
			Remedy: fmt.Sprintf("set TIMERD_STREAM_MAX_BYTES: %s and %s get so many bytes, the other streams a part "+
				"of it, and nothing is dropped from those",
				s.FiredStream(), s.DeliveryStream()),
		}
	case code == codeMaxStreamBytes:
		return &Fault{
			What: fmt.Sprintf("the account allows no stream of %d bytes (disk_max_stream_bytes%s)", s.MaxBytes,
				limitOf(ctx, js, storeMaxStreamBytes)),
			Remedy: "set a lower TIMERD_STREAM_MAX_BYTES, or raise the account's limit",
		}
	case code == codeNoStorage && want.MaxBytes > 0:
		return &Fault{
			What: "the file storage is too small for the limits in bytes of all streams together (max_file of the " +
				"account, or max_file_store of the server)",
			Remedy: fmt.Sprintf("set a lower TIMERD_STREAM_MAX_BYTES than %d, or give the account, and the server, "+
				"more file storage",
				s.MaxBytes),
		}
	case code == codeNoStorage:
		return &Fault{What: "the file storage has no room for another stream", Remedy: accountFullFix}
	case code == codeMaxStreams:
		return &Fault{
			What: fmt.Sprintf("the account allows no further stream (max_streams%s)", limitOf(ctx, js, maxStreams)),
			Remedy: fmt.Sprintf("raise max_streams of the account: timerd needs %s, %s and %s, with %s it notices "+
				"lost data, and timerd deliver needs %s",
				s.FiredStream(), s.RetryStream(), s.DeadStream(), s.StateStream(), s.DeliveryStream()),
		}
	case code == codeInvalidConfig && strings.Contains(err.Error(), "duplicates window"):
		remedy := fmt.Sprintf("set jetstream { limits { duplicate_window: %q } } in its configuration",
			diag.Duration(duplicateWindow))
		if s.minDuplicates() > defaultMinDuplicates {
			remedy += ", or a shorter TIMERD_LEASE"
		}
		return &Fault{What: fmt.Sprintf("timerd needs a duplicate window of %s: %v", diag.Duration(s.minDuplicates()),
			err), Remedy: remedy}
	}
	return err
}

func maxStreams(l jetstream.AccountLimits) int64          { return int64(l.MaxStreams) }
func storeMaxStreamBytes(l jetstream.AccountLimits) int64 { return l.StoreMaxStreamBytes }

// limitOf returns a limit of the account, formatted to follow its name; "" if unknown.
func limitOf(ctx context.Context, js jetstream.JetStream, which func(jetstream.AccountLimits) int64) string {
	account, err := js.AccountInfo(ctx)
	if err != nil || which(account.Limits) <= 0 {
		return ""
	}
	return fmt.Sprintf(": %d", which(account.Limits))
}
