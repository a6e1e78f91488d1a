package connect

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/timerd-io/timerd/internal/config"
	"github.com/timerd-io/timerd/internal/embedded"
)

// How a lost connection is noticed and made again. /readyz promises 503 within 5 s of a failure and 200
// within 10 s of the recovery.
const (
	// reconnectWait is how long to wait between tries. A short wait costs a server that comes back little,
	// and every timer that is due meanwhile waits for it. The jitter keeps several timerds apart.
	reconnectWait      = 250 * time.Millisecond
	reconnectJitter    = 100 * time.Millisecond
	reconnectJitterTLS = 250 * time.Millisecond
	// pingInterval and pingsOut notice a silent end of the other side: after 6 s at most. The publisher
	// notices it before that, by the missing acknowledgements.
	pingInterval = 2 * time.Second
	pingsOut     = 2
	// netTimeout bounds a dial, and a write of the flusher.
	netTimeout = 2 * time.Second
	// repeatAfter limits how often one and the same asynchronous error is
	// logged: a missing permission comes back with every message.
	repeatAfter = time.Minute
)

// NATSOptions returns the options of every connection to NATS. The connection reconnects for ever, keeps
// nothing back to send after a reconnect, and notices within seconds that the other side is gone.
func NATSOptions() []nats.Option {
	return []nats.Option{
		nats.Name("timerd"),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(reconnectWait),
		nats.ReconnectJitter(reconnectJitter, reconnectJitterTLS),
		nats.PingInterval(pingInterval),
		nats.MaxPingsOutstanding(pingsOut),
		nats.FlusherTimeout(netTimeout),
		nats.SetCustomDialer(socketDialer{net.Dialer{Timeout: netTimeout}}),
		// Credentials that are refused for a while, as during their rotation, must
		// not end timerd: the file is read again at each try.
		nats.IgnoreAuthErrorAbort(),
		// A message kept back through an outage would be published when its lease
		// is over and somebody else has published it.
		nats.ReconnectBufSize(-1),
		nats.NoCallbacksAfterClientClose(),
	}
}

// Embedded starts the embedded NATS server that the settings name, to which JetStream then connects with
// [nats.InProcessServer]. maxPayload is that of a timer, in bytes. The caller stops the server.
func (c Connector) Embedded(ctx context.Context, conf config.NATS, maxPayload int) (*embedded.Server, error) {
	return embedded.Start(ctx, embedded.Options{
		Dir: conf.DataDir, User: conf.User, Password: conf.Password, Address: conf.ListenAddr(), Named: conf.Listen != "", MaxPayload: maxPayload,
	}, c.Logger)
}

// credentials returns the options with which to log in.
func credentials(conf config.NATS) []nats.Option {
	var options []nats.Option
	if conf.User != "" {
		options = append(options, nats.UserInfo(conf.User, conf.Password))
	}
	if conf.Creds != "" {
		options = append(options, nats.UserCredentials(conf.Creds))
	}
	var certificate nats.TLSCertHandler
	if conf.Cert != "" {
		certificate = conf.ClientCertificate
	}
	var authorities nats.RootCAsHandler
	if conf.CA != "" {
		authorities = conf.Authorities
	}
	if certificate != nil || authorities != nil {
		options = append(options, nats.ClientTLSConfig(certificate, authorities))
	}
	return options
}

// logTo has a connection log what happens to it.
func logTo(log *slog.Logger) []nats.Option {
	isNew := oncePer(repeatAfter)
	return []nats.Option{
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			log.Warn("NATS connection lost", "err", err)
		}),
		nats.ReconnectHandler(func(nc *nats.Conn) {
			log.Info("NATS connection is back", "url", nc.ConnectedUrlRedacted())
		}),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			if isNew(err.Error()) {
				log.Warn("NATS reports an error", "err", err)
			}
		}),
	}
}

// oncePer returns a function that tells whether a text is new or was last let
// through longer than the interval ago. It may be called concurrently.
func oncePer(interval time.Duration) func(text string) bool {
	const remembered = 100
	var mu sync.Mutex
	last := map[string]time.Time{}
	return func(text string) bool {
		mu.Lock()
		defer mu.Unlock()
		if at, ok := last[text]; ok && time.Since(at) < interval {
			return false
		}
		if len(last) >= remembered {
			clear(last)
		}
		last[text] = time.Now()
		return true
	}
}

// NATSRefused tells whether trying again is of no use.
func NATSRefused(err error) bool {
	return slices.ContainsFunc([]error{
		nats.ErrAuthorization, nats.ErrAuthExpired, nats.ErrAuthRevoked, nats.ErrAccountAuthExpired,
		nats.ErrNkeysNotSupported, nats.ErrSecureConnRequired, nats.ErrSecureConnWanted,
	}, func(refusal error) bool { return errors.Is(err, refusal) })
}
