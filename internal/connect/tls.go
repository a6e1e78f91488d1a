package connect

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/timerd-io/timerd/internal/config"
	"github.com/timerd-io/timerd/internal/diag"
)

// probeTimeout bounds the probe for TLS, and for the reason why a server refuses this client. An accepting server sends
// nothing, so the probe then takes that long.
const probeTimeout = time.Second

// fixNoTLS is the fix for TLS with a server that has none.
const fixNoTLS = "the server speaks no TLS there: write redis:// in TIMERD_REDIS_URL, or name the tls-port"

// explainTLS returns the reason and the fix if a first command's error means that TLS fails or is missing; any other
// error it returns as it is. A retry does not help.
//
// A server that requires another certificate says so only after it has read the client's, and then closes the
// connection. A command written then may fail before the client reads the reason; and a server that expects TLS closes
// a plain connection without a word. So after a close, explainTLS asks again on a second connection, and writes nothing
// there.
func explainTLS(ctx context.Context, conf config.Redis, err error) error {
	if err == nil {
		return nil
	}
	if fault := tlsFault(conf, err); fault != nil {
		return fault
	}
	addr := conf.FirstAddr
	if strings.HasPrefix(addr, "/") {
		return err
	}
	// Redis takes a TLS handshake for the beginning of a command line, and waits for its end.
	if conf.TLS != nil && isTimeout(err) && answersPlainly(ctx, addr) {
		return withFix(err, fixNoTLS)
	}
	if !isClosed(err) && !isForeign(err) {
		return err
	}
	if conf.TLS != nil {
		if fault := tlsFault(conf, probe(ctx, addr, conf.TLS)); fault != nil {
			return fault
		}
		return err
	}
	said := probe(ctx, addr, &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // nothing is sent
	if said == nil || isAlert(said) {
		return withFix(err, "the server speaks TLS there: write rediss:// in TIMERD_REDIS_URL")
	}
	return err
}

// isForeign reports whether the server's answer is not in Redis's protocol.
func isForeign(err error) bool {
	return strings.HasPrefix(err.Error(), "redis: can't parse") ||
		strings.HasPrefix(err.Error(), "redis: invalid reply")
}

// isTimeout reports whether the server did not answer in time.
func isTimeout(err error) bool {
	timeout, ok := errors.AsType[net.Error](err)
	return ok && timeout.Timeout() || errors.Is(err, context.DeadlineExceeded)
}

// answersPlainly reports whether a server answers a command without TLS.
func answersPlainly(ctx context.Context, addr string) bool {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return false
	}
	defer func() { _ = conn.Close() }() // the answer is known
	if err := conn.SetDeadline(time.Now().Add(probeTimeout)); err != nil {
		return false
	}
	first := make([]byte, 1)
	if _, err := io.WriteString(conn, "PING\r\n"); err != nil {
		return false
	}
	_, err = conn.Read(first)
	return err == nil && (first[0] == '+' || first[0] == '-')
}

// probe makes a TLS connection and returns the server's objection, or nil.
func probe(ctx context.Context, addr string, secure *tls.Config) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	dialer := tls.Dialer{Config: secure}
	conn, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // nothing was written
	if err := conn.SetReadDeadline(time.Now().Add(probeTimeout)); err != nil {
		return err
	}
	_, err = conn.Read(make([]byte, 1))
	if isTimeout(err) {
		return nil
	}
	return err
}

// isAlert reports whether an error is a TLS alert from the other side.
func isAlert(err error) bool {
	alert, ok := errors.AsType[*net.OpError](err)
	return ok && alert.Op == "remote error"
}

// withFix adds a fix to an error.
func withFix(err error, fix string) error {
	return &diag.Fault{What: err.Error(), Remedy: fix, Err: err}
}

// tlsFault returns the fault behind an error of TLS, or nil for any other error.
func tlsFault(conf config.Redis, err error) error {
	fix := certificateFix("TIMERD_REDIS_URL", "TIMERD_REDIS_CA", conf.TLS != nil && conf.TLS.RootCAs != nil, err)
	if fix != "" {
		return withFix(err, fix)
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		fix = fixNoTLS
	} else if isAlert(err) {
		fix = alertFix(conf, err.Error())
	}
	if fix == "" {
		return nil
	}
	return withFix(err, fix)
}

// certificateFix returns the fix for the certificate of a server, or "" if the error is another one. url and ca name
// the settings of the server and of its authorities; named reports whether these are set.
func certificateFix(url, ca string, named bool, err error) string {
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok && named {
		return "let the file of " + ca + " hold the authority that signed the server's certificate"
	} else if ok {
		return "set " + ca + " to a PEM file with the authority that signed the server's certificate"
	}
	if wrong, ok := errors.AsType[x509.HostnameError](err); ok {
		return fmt.Sprintf("name the server in %s as its certificate does, or give it a certificate for %s", url,
			wrong.Host)
	}
	invalid, ok := errors.AsType[x509.CertificateInvalidError](err)
	switch {
	case !ok:
		return ""
	case invalid.Reason == x509.Expired:
		return "renew the server's certificate, or the authority's; or set the clock here"
	}
	return "give the server another certificate"
}

// alertFix returns the fix for a server's TLS alert, or "" if none is known.
func alertFix(conf config.Redis, alert string) string {
	switch {
	case strings.Contains(alert, "protocol version"):
		return "let the server speak TLS 1.2 or 1.3: tls-protocols"
	// With TLS 1.2 a missing certificate fails the handshake.
	case !strings.Contains(alert, "certificate") && !strings.Contains(alert, "handshake failure"):
		return ""
	case conf.TLS != nil && conf.TLS.GetClientCertificate != nil:
		return "let the server know the authority of the certificate in TIMERD_REDIS_CERT, by its tls-ca-cert-file, " +
			"or give timerd another certificate"
	default:
		return "set TIMERD_REDIS_CERT and TIMERD_REDIS_KEY: the server wants a client certificate"
	}
}
