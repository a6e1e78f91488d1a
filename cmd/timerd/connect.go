package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
)

// How servers that are away at the start are tried.
const (
	startPatience  = 30 * time.Second
	attemptTimeout = 5 * time.Second
	firstDelay     = 250 * time.Millisecond
	longestDelay   = 4 * time.Second
)

// How a lost NATS connection is noticed and made again: within 10 s of the
// server's return, and within 9 s of a silent end of the old connection.
const (
	natsReconnectWait   = time.Second
	natsReconnectJitter = 250 * time.Millisecond
	natsPingInterval    = 3 * time.Second
	natsPingsOut        = 2
	// natsErrorEvery limits how often one and the same asynchronous error is
	// logged: a missing permission comes back with every message.
	natsErrorEvery = time.Minute
)

// connector makes the first connections.
type connector struct {
	log      *slog.Logger
	patience time.Duration // how long servers that are away are tried; 0: once
}

// redis connects to Redis. It returns once the server answers; the caller closes
// the client. Refused credentials are an error at once.
func (c connector) redis(ctx context.Context, config redisConfig) (redis.UniversalClient, error) {
	rdb := config.newClient()
	err := c.persist(ctx, "Redis at "+config.Shown, redisRefused, func(ctx context.Context) error {
		return rdb.Ping(ctx).Err()
	})
	if redis.HasErrorPrefix(err, noCluster) {
		err = fmt.Errorf("%w; set TIMERD_REDIS_MODE=standalone, or sentinel", err)
	}
	if err != nil {
		return nil, errors.Join(err, rdb.Close())
	}
	return rdb, nil
}

// noCluster begins what a server says that is no node of a cluster.
const noCluster = "This instance has cluster support disabled"

// redisRefused tells whether trying again is of no use: the server answers and
// does not want us.
func redisRefused(err error) bool {
	if redis.IsAuthError(err) || redis.IsPermissionError(err) {
		return true
	}
	for _, prefix := range []string{
		"DENIED ", // protected mode
		noCluster,
		"invalid DB index", "DB index is out of range", "SELECT is not allowed",
	} {
		if redis.HasErrorPrefix(err, prefix) {
			return true
		}
	}
	return false
}

// nats connects to NATS and makes sure that JetStream answers. Further options,
// such as nats.InProcessServer, come last. The caller closes the connection.
func (c connector) nats(ctx context.Context, config natsConfig, extra ...nats.Option) (*nats.Conn, error) {
	nc, err := c.dialNATS(ctx, config, extra...)
	if err != nil {
		return nil, err
	}
	err = c.persist(ctx, "JetStream at "+config.Shown, natsRefused, func(ctx context.Context) error {
		js, err := jetstream.New(nc)
		if err != nil {
			return err
		}
		_, err = js.AccountInfo(ctx)
		return err
	})
	if err != nil {
		nc.Close()
		return nil, err
	}
	return nc, nil
}

// dialNATS connects to NATS, with or without JetStream.
func (c connector) dialNATS(ctx context.Context, config natsConfig, extra ...nats.Option) (nc *nats.Conn, err error) {
	options := append(natsOptions(config, c.log), extra...)
	err = c.persist(ctx, "NATS at "+config.Shown, natsRefused, func(context.Context) error {
		nc, err = nats.Connect(config.URL, options...)
		return err
	})
	return nc, err
}

// natsRefused tells whether trying again is of no use.
func natsRefused(err error) bool {
	for _, refusal := range []error{
		nats.ErrAuthorization, nats.ErrAuthExpired, nats.ErrAuthRevoked, nats.ErrAccountAuthExpired,
		nats.ErrNkeysNotSupported, nats.ErrSecureConnRequired, nats.ErrSecureConnWanted,
	} {
		if errors.Is(err, refusal) {
			return true
		}
	}
	return false
}

// natsOptions are those of every connection to NATS.
func natsOptions(config natsConfig, log *slog.Logger) []nats.Option {
	said := onceIn(natsErrorEvery)
	options := []nats.Option{
		nats.Name(clientName),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(natsReconnectWait),
		nats.ReconnectJitter(natsReconnectJitter, natsReconnectJitter),
		nats.PingInterval(natsPingInterval),
		nats.MaxPingsOutstanding(natsPingsOut),
		// Credentials that are refused for a while, as during their rotation, must
		// not end timerd: the file is read again at each try.
		nats.IgnoreAuthErrorAbort(),
		// A message kept back through an outage would be published when its lease
		// is over and somebody else has published it.
		nats.ReconnectBufSize(-1),
		nats.NoCallbacksAfterClientClose(),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			log.Warn("NATS connection lost", "err", err)
		}),
		nats.ReconnectHandler(func(nc *nats.Conn) {
			log.Info("NATS connection is back", "url", nc.ConnectedUrlRedacted())
		}),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			if said(err.Error()) {
				log.Warn("NATS reports an error", "err", err)
			}
		}),
	}
	if config.Creds != "" {
		options = append(options, nats.UserCredentials(config.Creds))
	}
	if config.CA != "" {
		options = append(options, nats.RootCAs(config.CA))
	}
	if config.Cert != "" {
		options = append(options, nats.ClientCert(config.Cert, config.Key))
	}
	return options
}

// onceIn returns a function that tells whether a text is new or was last let
// through longer than every ago. It may be called concurrently.
func onceIn(every time.Duration) func(text string) bool {
	const remembered = 100
	var mu sync.Mutex
	last := map[string]time.Time{}
	return func(text string) bool {
		mu.Lock()
		defer mu.Unlock()
		if at, ok := last[text]; ok && time.Since(at) < every {
			return false
		}
		if len(last) >= remembered {
			clear(last)
		}
		last[text] = time.Now()
		return true
	}
}

// persist tries until it works, the server refuses, the patience is over or ctx
// ends. Each failed attempt is logged with the delay before the next.
func (c connector) persist(ctx context.Context, server string, refused func(error) bool, try func(context.Context) error) error {
	deadline := time.Now().Add(c.patience)
	for attempt, delay := 1, firstDelay; ; attempt, delay = attempt+1, min(2*delay, longestDelay) {
		within, cancel := context.WithTimeout(ctx, attemptTimeout)
		err := try(within)
		cancel()
		left := time.Until(deadline)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case refused(err):
			return fmt.Errorf("%s refuses the connection: %w", server, err)
		case c.patience == 0:
			return fmt.Errorf("%s does not answer: %w", server, err)
		case left <= 0:
			return fmt.Errorf("%s did not answer for %v: %w", server, c.patience, err)
		}
		delay = min(delay, left)
		c.log.Warn("server is away, trying again", "server", server, "attempt", attempt, "delay", delay, "err", err)
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(delay):
		}
	}
}
