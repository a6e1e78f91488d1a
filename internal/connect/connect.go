// Package connect makes timerd's connections to Redis and NATS, and is the only package to do so: names, dialers,
// pools, reconnects, and the patience with servers that are away.
package connect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/backoff"
	"github.com/timerd-io/timerd/internal/config"
	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/streams"
)

// defaultNATSPort is the port of a URL without one.
const defaultNATSPort = "4222"

// attemptTimeout is the default bound of one try.
const attemptTimeout = 5 * time.Second

// Connector makes first connections. With a zero Patience, for commands, a server that is away is an error at once.
type Connector struct {
	Logger   *slog.Logger
	Patience time.Duration // time for retries of a server that is away; 0: one try
	Attempt  time.Duration // bounds one try; 0: 5 s
}

// Redis connects to Redis and returns once the server answers; of a cluster, once a master does. The caller closes the
// client. Refused credentials are an error at once, see [RedisRefused]. So is a failure of TLS: a [*diag.Fault].
func (c Connector) Redis(ctx context.Context, conf config.Redis) (redis.UniversalClient, error) {
	rdb := NewRedisClient(conf)
	err := c.persist(ctx, "Redis at "+conf.Shown, RedisRefused, func(within context.Context) error {
		err := explainTLS(ctx, conf, answers(within, rdb))
		if redis.HasErrorPrefix(err, noCluster) {
			err = fmt.Errorf("%w; set TIMERD_REDIS_MODE=standalone, or sentinel", err)
		}
		return err
	})
	if err != nil {
		_ = rdb.Close() // the first error counts
		return nil, frozenRedis(ctx, conf, err)
	}
	return rdb, nil
}

// frozenRedis returns the error of a first connection, as a [*diag.Fault] if the server accepts connections and does
// not answer. With several servers, the frozen one is unknown.
func frozenRedis(ctx context.Context, conf config.Redis, err error) error {
	if conf.Mode != config.Standalone || ctx.Err() != nil {
		return err
	}
	if fault := diag.Frozen(err, diag.RedisProcess, conf.Standalone.Network, conf.Standalone.Addr); fault != nil {
		return diag.Wrap("Redis at "+conf.Shown, fault)
	}
	return err
}

// All calls use, a function that asks every server of Redis, until it succeeds, with the patience of a first
// connection. Missing rights are an error at once, and so is an error for which final is true.
func (c Connector) All(ctx context.Context, conf config.Redis, final func(error) bool,
	use func(context.Context) error) error {
	return c.use(ctx, "Redis at "+conf.Shown, func(err error) bool { return RedisRefused(err) || final(err) }, use)
}

// Streams calls use until it succeeds, with the patience of a first connection. It retries only while JetStream is not
// up yet: JetStream accepts requests while its streams still elect their leaders. Any other error is returned at once.
func (c Connector) Streams(ctx context.Context, conf config.NATS, use func(context.Context) error) error {
	return c.use(ctx, "JetStream at "+conf.Shown, func(err error) bool { return err != nil && !streams.NotUp(err) },
		use)
}

// use calls use until it succeeds, the patience is over, or it returns an error for which final is true.
func (c Connector) use(ctx context.Context, server string, final func(error) bool,
	use func(context.Context) error) error {
	var last error // the error that ends the tries
	err := c.persist(ctx, server, final, func(within context.Context) error {
		err := use(within)
		if final(err) {
			last, err = err, nil
		}
		return err
	})
	if last != nil {
		return last
	}
	return err
}

// JetStream connects to NATS and returns once JetStream answers. Further options, such as nats.InProcessServer, come
// last. The caller closes the connection. A server too old or without JetStream is an error at once: a
// [*streams.Fault].
func (c Connector) JetStream(ctx context.Context, conf config.NATS, extra ...nats.Option) (jetstream.JetStream, error) {
	nc, err := c.NATS(ctx, conf, extra...)
	if err != nil {
		return nil, err
	}
	js, err := NewJetStream(nc, conf)
	if err == nil {
		err = c.persist(ctx, "JetStream at "+conf.Shown, NATSRefused, func(ctx context.Context) error {
			if err := streams.CheckVersion(nc.ConnectedServerVersion()); err != nil {
				return err
			}
			_, err := streams.CheckAccount(ctx, js)
			return err
		})
	}
	if err == nil {
		return js, nil
	}
	nc.Close()
	if ctx.Err() == nil && !NATSRefused(err) { // NATS itself answers
		err = diag.WithFix(err, streams.SilentFix)
	}
	return nil, err
}

// NATS connects to NATS, with or without JetStream. The caller closes the connection. Refused credentials
// are an error at once, see [NATSRefused].
func (c Connector) NATS(ctx context.Context, conf config.NATS, extra ...nats.Option) (nc *nats.Conn, err error) {
	options := append(NATSOptions(), credentials(conf)...)
	options = append(append(options, logTo(c.Logger)...), extra...)
	err = c.persist(ctx, "NATS at "+conf.Shown, NATSRefused, func(context.Context) error {
		nc, err = nats.Connect(conf.URL, options...)
		return err
	})
	return nc, frozenNATS(ctx, conf, err)
}

// frozenNATS returns the error of a first connection, as a [*diag.Fault] if a server accepts connections and does not
// answer.
func frozenNATS(ctx context.Context, conf config.NATS, err error) error {
	if err == nil || ctx.Err() != nil {
		return err
	}
	var addrs []string
	for one := range strings.SplitSeq(conf.URL, ",") {
		if u, err := url.Parse(strings.TrimSpace(one)); err == nil && u.Host != "" {
			addrs = append(addrs, net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), defaultNATSPort)))
		}
	}
	if errors.Is(err, nats.ErrTimeout) {
		err = fmt.Errorf("%w: %w", err, context.DeadlineExceeded)
	}
	if fault := diag.Frozen(err, diag.NATSProcess, "tcp", addrs...); fault != nil {
		return diag.Wrap("NATS at "+conf.Shown, fault)
	}
	return err
}

// persist calls try until it succeeds, the server refuses or cannot serve, the patience is over or ctx ends.
func (c Connector) persist(ctx context.Context, server string, refused func(error) bool,
	try func(context.Context) error) error {
	deadline := time.Now().Add(c.Patience)
	pace := backoff.Backoff{Policy: backoff.Policy{First: 250 * time.Millisecond, Longest: 4 * time.Second},
		Logger: c.Logger}
	for {
		limit := cmp.Or(c.Attempt, attemptTimeout)
		within, cancel := context.WithTimeout(ctx, limit)
		err := try(within)
		cancel()
		if err != nil && errors.Is(err, context.DeadlineExceeded) {
			err = diag.Wrap(fmt.Sprintf("no answer within %v", limit), err)
		}
		left := time.Until(deadline)
		_, fixable := errors.AsType[diag.Fixable](err)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case refused(err):
			return fmt.Errorf("%s refuses the connection: %w", server, err)
		case fixable: // retrying is pointless
			return diag.Wrap(server, err)
		case c.Patience == 0 && diag.Refusal(err) != nil:
			return diag.Wrap(server, diag.Refusal(err))
		case c.Patience == 0:
			return fmt.Errorf("%s does not answer: %w", server, err)
		case left <= 0:
			return fmt.Errorf("%s did not answer for %v: %w", server, c.Patience, err)
		}
		delay := pace.Fail("cannot reach server, trying again", err, "server", server)
		if !backoff.Sleep(ctx, min(delay, left)) {
			return context.Cause(ctx)
		}
	}
}
