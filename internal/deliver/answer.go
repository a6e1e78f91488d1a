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
	// shownAnswer is how much of an answer that is no success is kept.
	shownAnswer = 1 << 10
	// maxAnswer is how much of an answer is read, and answerPatience how long a success may take for it, so that the
	// connection can be used again.
	maxAnswer      = 64 << 10
	answerPatience = time.Second
	// crowdedWait is how long a delivery waits that this machine had no connection for.
	crowdedWait = 5 * time.Second
)

// verdict is what an answer means.
type verdict int

const (
	failed    verdict = iota // to be tried again, by the policy
	deferred                 // to be tried again, no sooner than the host says
	delivered                // done
	hopeless                 // never to be tried again
	returned                 // nothing was learned about the host: it is this side's fault
	cutShort                 // the same, since this process stops
)

// answer is what came of a call.
type answer struct {
	verdict verdict
	status  int           // 0 without an answer
	after   time.Duration // of deferred and returned: how long to wait
	text    string        // what went wrong, without secrets
	host    bool          // the host failed, which counts for its circuit
}

// judge reads an answer. what is the beginning of its body.
func judge(response *http.Response, what string, now time.Time) answer {
	a := answer{status: response.StatusCode, text: statusText(response.StatusCode)}
	if what != "" {
		a.text += ": " + what
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

// statusText returns the standard text of a status, such as 404 Not Found, not the host's.
func statusText(status int) string {
	return strings.TrimSpace(fmt.Sprintf("%d %s", status, http.StatusText(status)))
}

// explain says why there is no answer. timeout is how long the call was allowed to take, and stopping that it was cut
// short.
func explain(err error, timeout time.Duration, stopping bool) answer {
	if failure, ok := errors.AsType[*url.Error](err); ok {
		err = failure.Err // without the URL
	}
	timed, ok := errors.AsType[net.Error](err)
	switch {
	case stopping:
		return answer{verdict: cutShort, text: "cut short: timerd deliver stops"}
	case isRefused(err):
		return answer{verdict: hopeless, text: "bad URL: its host has no address that may be called: each is special and not in allow_private, or is in deny"}
	case isCrowded(err):
		return answer{verdict: returned, after: crowdedWait, text: "timerd deliver has too many connections: " + err.Error()}
	case errors.Is(err, context.DeadlineExceeded), ok && timed.Timeout():
		return answer{text: fmt.Sprintf("no answer within %v", timeout), host: true}
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return answer{text: "connection closed without an answer", host: true}
	}
	return answer{text: event.ErrorText(err.Error()), host: true}
}

// isCrowded tells whether this machine has no connection for a call. Of what went wrong while a name was looked up there
// is but the text.
func isCrowded(err error) bool {
	lookup, _ := errors.AsType[*net.DNSError](err)
	return slices.ContainsFunc([]error{syscall.EMFILE, syscall.ENFILE, syscall.EADDRNOTAVAIL, syscall.ENOBUFS}, func(cause error) bool {
		return errors.Is(err, cause) && !isUnreachable(err) || lookup != nil && strings.HasSuffix(lookup.Err, cause.Error())
	})
}

// isUnreachable reports whether an error could mean that all ports to a host are in use, that the host has an address of
// IPv6, which this machine has none of: it says so by the same error.
func isUnreachable(err error) bool {
	dial, ok := errors.AsType[*net.OpError](err)
	if !ok || !errors.Is(err, syscall.EADDRNOTAVAIL) {
		return false
	}
	at, ok := dial.Addr.(*net.TCPAddr)
	return ok && at.IP.To4() == nil
}

// read reads the beginning of an answer, as text without secrets, and as much of the rest as it takes for the connection
// to be used again.
func (e *Endpoint) read(response *http.Response, cancel func()) string {
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode == http.StatusSwitchingProtocols {
		return "" // the body is the connection itself, which no end of the call would keep from being read
	}
	success := response.StatusCode >= 200 && response.StatusCode <= 299
	if success { // the answer is there, however long the rest takes
		hurry := time.AfterFunc(answerPatience, cancel)
		defer hurry.Stop()
	}
	longest := 0 // secret: what is cut must not leave a part of one
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
