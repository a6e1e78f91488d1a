package streams

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/diag"
)

// The oldest NATS server that timerd works with. 2.10 brought metadata of streams, by which installations keep off each
// other's streams, and the creation of a consumer that fails if there is one, by which one of them alone marks them.
const minServerMajor, minServerMinor = 2, 10

// SilentFix is what to do where NATS is reached and its JetStream does not answer.
const SilentFix = "look at the log of the NATS server: it ends JetStream when its disk is full, and a cluster needs a leader; let the user call $JS.API.>"

// diskFix is what to do about a NATS server that cannot write a stream's file.
const diskFix = "make space on the disk of the NATS server, or repair what it names, and then restart nats-server, or the timerd that it is part of: until then it keeps the error"

// UnansweredFix is what to do where JetStream answers, but not to events.
const UnansweredFix = "look at the log of the NATS server and its /healthz: if its disk was full, " + diskFix

// Error codes by which an account, or a server, has no room for what is published.
const (
	codeAccountStorage jetstream.ErrorCode = 10002
	codeResources      jetstream.ErrorCode = 10023
)

// NotUp tells whether an error is that JetStream does not answer, has no leader, or knows too few servers of its cluster: that may
// pass by itself.
func NotUp(err error) bool {
	refused, is := errors.AsType[*jetstream.APIError](err)
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrTimeout) || errors.Is(err, nats.ErrNoResponders) ||
		is && (refused.Code == http.StatusServiceUnavailable || refused.ErrorCode == codeNoPeers)
}

// CheckVersion returns a Fault if a NATS server of that version is too old. One that cannot be read is not.
func CheckVersion(version string) error {
	if major, minor, ok := parseVersion(version); !ok || atLeast(major, minor, minServerMajor, minServerMinor) {
		return nil
	}
	return &Fault{
		What:   fmt.Sprintf("nats-server %s is too old", version),
		Remedy: fmt.Sprintf("upgrade to nats-server %d.%d or later", minServerMajor, minServerMinor),
	}
}

// CheckAccount returns what the account uses of JetStream. The error is a Fault if JetStream is off, for the server or
// for the account; any other error is worth another try.
func CheckAccount(ctx context.Context, js jetstream.JetStream) (*jetstream.AccountInfo, error) {
	account, err := js.AccountInfo(ctx)
	switch {
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

// Explained returns why JetStream has not answered, with the fix: as [CheckAccount] tells it, if it does. Any other error it returns as it is.
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

// Refused returns an error with the fix if it is that JetStream has no room, any other as it is. It asks nobody.
func Refused(err error) error {
	switch codeOf(err) {
	case codeResources:
		return &diag.Fault{
			What:   "the NATS server has no more room for JetStream (max_file_store): " + err.Error(),
			Remedy: "raise max_file_store in its configuration, then: nats-server --signal reload; or delete streams that nobody needs",
			Err:    err,
		}
	case codeAccountStorage, codeNoStorage:
		return &diag.Fault{What: err.Error(), Remedy: accountFullFix, Err: err}
	}
	return err
}

// accountFullFix is what to do about an account without room for what timerd stores.
const accountFullFix = "give the account more file storage: max_file, or jetstream: {max_file} of the account"

// AccountFullness returns a Fault if an account has no room left in its file storage for a message with a payload of so many bytes.
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

// TakesBatches tells whether the connected server syncs an atomic batch to disk at once, as nats-server does from 2.15 on. It has batches
// since 2.12, but syncs each message of one, and 2.12.0 refuses those with a Nats-Msg-Id.
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
