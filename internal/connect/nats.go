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
	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/config"
	"github.com/timerd-io/timerd/internal/embedded"
)

// Timing of the detection of a lost connection, and of reconnects. /readyz promises 503 within 5 s of a failure and 200
// within 10 s of the recovery.
const (
	// reconnectWait is the pause between tries. A short one costs a returning server little, while every due timer
	// waits for the reconnect. The jitter keeps several timerds apart.
	reconnectWait      = 250 * time.Millisecond
	reconnectJitter    = 100 * time.Millisecond
	reconnectJitterTLS = 250 * time.Millisecond
	// pingInterval and pingsOut detect a silent loss of the other side within 6 s. The publisher notices it earlier, by
	// missing acknowledgements.
	pingInterval = 2 * time.Second
	pingsOut     = 2
	// netTimeout bounds a dial, and a write of the flusher.
	netTimeout = 2 * time.Second
	// repeatAfter is the least interval between log lines of the same asynchronous error: a missing permission recurs
	// with every message.
	repeatAfter = time.Minute
)

// NATSOptions returns the options of every connection to NATS. The connection reconnects for ever, buffers nothing for
// a reconnect, and notices within seconds that the other side is gone.
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
		// Credentials refused for a while, as during their rotation, must not end timerd: each try reads the file
		// again.
		nats.IgnoreAuthErrorAbort(),
		// A message buffered through an outage would be published after the end of its lease, when another timerd has
		// published it.
		nats.ReconnectBufSize(-1),
		nats.NoCallbacksAfterClientClose(),
	}
}

// Embedded starts the embedded NATS server of the settings; JetStream connects to it with [nats.InProcessServer].
// maxPayload is a timer's limit, in bytes. The caller stops the server.
func (c Connector) Embedded(ctx context.Context, conf config.NATS, maxPayload int) (*embedded.Server, error) {
	return embedded.Start(ctx, embedded.Options{
		Dir: conf.DataDir, User: conf.User, Password: conf.Password, Address: conf.ListenAddr(),
		Named: conf.Listen != "", MaxPayload: maxPayload,
	}, c.Logger)
}

// credentials returns the options of the login.
func credentials(conf config.NATS) []nats.Option {
	var options []nats.Option
	if conf.User != "" {
		options = append(options, nats.UserInfo(conf.User, conf.Password))
	}
	if conf.Creds != "" {
		options = append(options, nats.UserCredentials(conf.Creds))
	}
	options = append(options, authenticate(conf.Auth)...)
	if conf.TLSFirst {
		options = append(options, nats.TLSHandshakeFirst())
	}
	if conf.InboxPrefix != "" {
		options = append(options, nats.CustomInboxPrefix(conf.InboxPrefix))
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

// authenticate returns the options for the credentials that only a context of the nats command has.
func authenticate(a config.Auth) []nats.Option {
	switch {
	case a.Token != "":
		return []nats.Option{nats.Token(a.Token)}
	case a.UserSeed != "":
		return []nats.Option{nats.UserJWTAndSeed(a.UserJWT, a.UserSeed)}
	case a.UserJWT != "":
		bearer := func() (string, error) { return a.UserJWT, nil }
		return []nats.Option{nats.UserJWT(bearer, func([]byte) ([]byte, error) { return nil, nil })}
	case a.NKey != "":
		return []nats.Option{func(o *nats.Options) error { // the file is read for each client
			option, err := nats.NkeyOptionFromSeed(a.NKey)
			if err != nil {
				return err
			}
			return option(o)
		}}
	}
	return nil
}

// NewJetStream returns JetStream in the domain of the settings. It asks no server.
func NewJetStream(nc *nats.Conn, conf config.NATS) (jetstream.JetStream, error) {
	switch {
	case conf.Domain != "":
		return jetstream.NewWithDomain(nc, conf.Domain)
	case conf.APIPrefix != "":
		return jetstream.NewWithAPIPrefix(nc, conf.APIPrefix)
	}
	return jetstream.New(nc)
}

// logTo makes a connection log its events.
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

// oncePer returns a function that reports whether a text is new, or was last reported longer than the interval ago. It
// may be called concurrently.
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

// NATSRefused reports whether the server refuses the client, so that a retry is pointless.
func NATSRefused(err error) bool {
	return slices.ContainsFunc([]error{
		nats.ErrAuthorization, nats.ErrAuthExpired, nats.ErrAuthRevoked, nats.ErrAccountAuthExpired,
		nats.ErrNkeysNotSupported, nats.ErrSecureConnRequired, nats.ErrSecureConnWanted,
	}, func(refusal error) bool { return errors.Is(err, refusal) })
}
