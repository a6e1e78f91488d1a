package streams

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/diag"
)

// The oldest NATS server for timerd. Since 2.10 streams have metadata, which keep installations from using each other's
// streams. Since then it can also be an error to create a consumer that exists; so only one installation at a time
// marks streams.
const minServerMajor, minServerMinor = 2, 10

// SilentFix is the fix if NATS answers and its JetStream does not.
const SilentFix = "look at the log of the NATS server: it ends JetStream when its disk is full, and a cluster needs " +
	"a leader; let the user call $JS.API.>"

// diskFix is the fix for a NATS server that cannot write a stream's file.
const diskFix = "make space on the disk of the NATS server, or repair the named cause, and then restart nats-server, " +
	"or the timerd that it is part of: until then it keeps the error"

// UnansweredFix is the fix if JetStream answers, but not to events.
const UnansweredFix = "look at the log of the NATS server and its /healthz: if its disk was full, " + diskFix

// Error codes for a full account or server.
const (
	codeAccountStorage jetstream.ErrorCode = 10002
	codeResources      jetstream.ErrorCode = 10023
)

// NotUp reports whether an error means that JetStream does not answer, has no leader, or knows too few servers of its
// cluster: that may pass by itself.
func NotUp(err error) bool {
	refused, is := errors.AsType[*jetstream.APIError](err)
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrTimeout) ||
		errors.Is(err, nats.ErrNoResponders) ||
		is && (refused.Code == http.StatusServiceUnavailable || refused.ErrorCode == codeNoPeers)
}

// CheckVersion returns a Fault if a NATS server of that version is too old. An unreadable version passes.
func CheckVersion(version string) error {
	if major, minor, ok := parseVersion(version); !ok || atLeast(major, minor, minServerMajor, minServerMinor) {
		return nil
	}
	return &Fault{
		What:   fmt.Sprintf("nats-server %s is too old", version),
		Remedy: fmt.Sprintf("upgrade to nats-server %d.%d or later", minServerMajor, minServerMinor),
	}
}

// CheckAccount returns the account's usage of JetStream. The error is a Fault if JetStream is off, for the server or
// for the account; any other error is worth another try.
func CheckAccount(ctx context.Context, js jetstream.JetStream) (*jetstream.AccountInfo, error) {
	account, err := js.AccountInfo(ctx)
	in := js.Options()
	switch {
	case errors.Is(err, jetstream.ErrJetStreamNotEnabled) && in.Domain+in.APIPrefix != "":
		return nil, &Fault{
			What:   fmt.Sprintf("no JetStream answers at %q", cmp.Or(in.Domain, in.APIPrefix)),
			Remedy: "correct jetstream_domain or jetstream_api_prefix in the context of TIMERD_NATS_CONTEXT",
		}
	case errors.Is(err, jetstream.ErrJetStreamNotEnabled):
		return nil, &Fault{
			What:   "it runs without JetStream",
			Remedy: "add a jetstream block to the server's configuration, as in deploy/nats.conf",
		}
	case errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount):
		return nil, &Fault{
			What:   "JetStream is off for this account",
			Remedy: "enable it for the account: jetstream: enabled",
		}
	}
	return account, err
}

// Explained returns the reason why JetStream did not answer, with the fix, if [CheckAccount] finds one. Any other error
// it returns as it is.
func Explained(ctx context.Context, js jetstream.JetStream, err error) error {
	if errors.Is(err, nats.ErrNoResponders) {
		_, why := CheckAccount(ctx, js)
		if fault, ok := errors.AsType[*Fault](why); ok {
			return &diag.Fault{What: fault.Problem(), Remedy: fault.Fix(), Err: err}
		}
	}
	if NotUp(err) && codeOf(err) != codeResources {
		return diag.WithFix(err, SilentFix)
	}
	return Refused(err)
}

// Refused adds the fix to an error about missing room in JetStream, and returns any other as it is. It makes no
// request.
func Refused(err error) error {
	switch codeOf(err) {
	case codeResources:
		return &diag.Fault{
			What: "the NATS server has no more room for JetStream (max_file_store): " + err.Error(),
			Remedy: "raise max_file_store in its configuration, then: nats-server --signal reload; or delete streams " +
				"that nobody needs",
			Err: err,
		}
	case codeAccountStorage, codeNoStorage:
		return &diag.Fault{What: err.Error(), Remedy: accountFullFix, Err: err}
	}
	return err
}

// accountFullFix is the fix for an account without room.
const accountFullFix = "give the account more file storage: max_file, or jetstream: {max_file} of the account"

// AccountFullness returns a Fault if an account has no room left in its file storage for a message with payloadBytes of
// payload.
func AccountFullness(account *jetstream.AccountInfo, payloadBytes int) error {
	used, most := account.Store, account.Limits.MaxStore
	if most <= 0 || used+uint64(payloadBytes)+fullSlack <= uint64(most) {
		return nil
	}
	return &Fault{
		What:   fmt.Sprintf("the account is full: its streams take %d of at most %d bytes", used, most),
		Remedy: accountFullFix,
	}
}

// TakesBatches reports whether the connected server syncs an atomic batch to disk as one, as nats-server does since
// 2.15. Batches exist since 2.12, with a sync for each message, and 2.12.0 refuses batches with a Nats-Msg-Id.
func TakesBatches(js jetstream.JetStream) bool { return batchesAt(js.Conn().ConnectedServerVersion()) }

// batchesAt is TakesBatches for a server of a version.
func batchesAt(version string) bool {
	const major, minor = 2, 15
	hasMajor, hasMinor, ok := parseVersion(version)
	return ok && atLeast(hasMajor, hasMinor, major, minor)
}

func parseVersion(version string) (major, minor int, ok bool) {
	_, err := fmt.Sscanf(version, "%d.%d", &major, &minor)
	return major, minor, err == nil
}

func atLeast(major, minor, wantMajor, wantMinor int) bool {
	return major > wantMajor || major == wantMajor && minor >= wantMinor
}
