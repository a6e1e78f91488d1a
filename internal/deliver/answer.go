package deliver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/timerd-io/timerd/event"
)

const (
	// shownAnswer limits the kept part of a failed call's answer, in bytes.
	shownAnswer = 1 << 10
	// maxAnswer limits the bytes read of an answer, and answerPatience the time for reading a success, so that the
	// connection can be used again.
	maxAnswer      = 64 << 10
	answerPatience = time.Second
	// crowdedWait is the wait of a delivery for which this machine had no connection.
	crowdedWait = 5 * time.Second
)

// verdict is the meaning of an answer.
type verdict int

const (
	failed    verdict = iota // try again, by the policy
	deferred                 // try again, no sooner than the host asks
	delivered                // done
	hopeless                 // never try again
	returned                 // this side's fault: it says nothing about the host
	cutShort                 // this process stops: it says nothing about the host
)

// answer is the result of a call.
type answer struct {
	verdict verdict
	status  int           // 0 without an answer
	after   time.Duration // the wait, for deferred and returned
	text    string        // the error, without secrets
	host    bool          // the host failed, which counts for its circuit
}

// judge reads an answer with the given beginning of its body.
func judge(response *http.Response, body string, now time.Time) answer {
	a := answer{status: response.StatusCode, text: statusText(response.StatusCode)}
	if body != "" {
		a.text += ": " + body
	}
	a.host = a.status >= http.StatusInternalServerError
	switch {
	case a.status >= 200 && a.status <= 299:
		a.verdict, a.text = delivered, ""
	case a.status == http.StatusGone:
		a.verdict = hopeless
	case a.status == http.StatusTooManyRequests, a.status == http.StatusServiceUnavailable:
		if after, ok := retryAfter(response.Header, now); ok {
			a.verdict, a.after = deferred, after
		}
	}
	return a
}

// statusText returns the standard text of a status, such as 404 Not Found, not the host's own.
func statusText(status int) string {
	return strings.TrimSpace(fmt.Sprintf("%d %s", status, http.StatusText(status)))
}

// explain returns the reason for a missing answer. timeout is the call's limit; stopping is set if the stop of this
// process cut the call short.
func explain(err error, timeout time.Duration, stopping bool) answer {
	if failure, ok := errors.AsType[*url.Error](err); ok {
		err = failure.Err // without the URL
	}
	timed, ok := errors.AsType[net.Error](err)
	switch {
	case stopping:
		return answer{verdict: cutShort, text: "cut short: timerd deliver stops"}
	case isRefused(err):
		return answer{verdict: hopeless,
			text: "bad URL: its host has no allowed address: each is special and not in allow_private, or is in deny"}
	case isCrowded(err):
		return answer{verdict: returned, after: crowdedWait, text: "timerd deliver has too many connections: " +
			err.Error()}
	case errors.Is(err, context.DeadlineExceeded), ok && timed.Timeout():
		return answer{text: fmt.Sprintf("no answer within %v", timeout), host: true}
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return answer{text: "connection closed without an answer", host: true}
	}
	return answer{text: event.ErrorText(err.Error()), host: true}
}

// isCrowded reports whether this machine has no connection for a call. An error of a name's resolution has only its
// text.
func isCrowded(err error) bool {
	lookup, _ := errors.AsType[*net.DNSError](err)
	return slices.ContainsFunc([]error{syscall.EMFILE, syscall.ENFILE, syscall.EADDRNOTAVAIL, syscall.ENOBUFS},
		func(cause error) bool {
			return errors.Is(err, cause) && !isUnreachable(err) || lookup != nil &&
				strings.HasSuffix(lookup.Err, cause.Error())
		})
}

// isUnreachable reports whether an error could mean that all ports to a host are in use. The same error can mean that
// the host has an IPv6 address and this machine has none.
func isUnreachable(err error) bool {
	dial, ok := errors.AsType[*net.OpError](err)
	if !ok || !errors.Is(err, syscall.EADDRNOTAVAIL) {
		return false
	}
	at, ok := dial.Addr.(*net.TCPAddr)
	return ok && at.IP.To4() == nil
}

// read reads the beginning of an answer, as text without secrets, and enough of the rest to use the connection again.
func (e *Endpoint) read(response *http.Response, cancel func()) string {
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode == http.StatusSwitchingProtocols {
		return "" // the body is the connection, and a read of it does not end with the call
	}
	success := response.StatusCode >= 200 && response.StatusCode <= 299
	if success { // the answer has come, however long the rest takes
		hurry := time.AfterFunc(answerPatience, cancel)
		defer hurry.Stop()
	}
	longest := 0 // the longest secret: a cut must not leave a part of one
	for _, secret := range e.secrets {
		longest = max(longest, len(secret))
	}
	what, err := io.ReadAll(io.LimitReader(response.Body, int64(shownAnswer+longest)))
	if err == nil {
		_, _ = io.CopyN(io.Discard, response.Body, maxAnswer)
	}
	if success {
		return ""
	}
	text := e.hide(string(what))
	return event.ErrorText(strings.ToValidUTF8(text[:min(len(text), shownAnswer)], "�"))
}
