// Package servers gives an example its Redis, NATS and timerd: running ones, or its own for the time of its run.
package servers

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
)

// Servers is a connection to each of the servers that timerd connects.
type Servers struct {
	Redis     *redis.Client
	NATS      *nats.Conn
	JetStream jetstream.JetStream

	RedisURL string
	NATSURL  string
	HTTPAddr string // of /readyz and /metrics; "" for servers of somebody else

	dev *dev // nil for servers of somebody else
}

// Choice selects the servers.
type Choice struct {
	// RedisURL and NATSURL name the servers of a running timerd. Without any, Open starts its own servers.
	RedisURL, NATSURL string
	// Timerd is the program that Open starts them with.
	Timerd string
	// Retry is the TIMERD_RETRY of the timerd that Open starts.
	Retry string
}

// Open connects to the chosen servers, or starts some. The caller closes them. After
// an error nothing is left running.
func Open(ctx context.Context, choice Choice) (*Servers, error) {
	s := &Servers{RedisURL: choice.RedisURL, NATSURL: choice.NATSURL}
	switch given := choice.RedisURL != ""; {
	case given != (choice.NATSURL != ""):
		return nil, errors.New("give the URLs of both Redis and NATS, or none for servers of its own")
	case !given:
		d, err := startDev(ctx, choice.Timerd, choice.Retry)
		if err != nil {
			return nil, err
		}
		s.dev, s.RedisURL, s.NATSURL, s.HTTPAddr = d, d.redisURL, d.natsURL, d.httpAddr
	}
	if err := s.connect(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *Servers) connect(ctx context.Context) error {
	options, err := redis.ParseURL(s.RedisURL)
	if err != nil {
		return fmt.Errorf("the URL of Redis: %w", err)
	}
	s.Redis = redis.NewClient(options)
	if err := s.Redis.Ping(ctx).Err(); err != nil {
		return fmt.Errorf("connect to Redis at %s: %w", options.Addr, err)
	}
	if s.NATS, err = nats.Connect(s.NATSURL, nats.MaxReconnects(-1)); err != nil {
		return fmt.Errorf("connect to NATS: %w", err)
	}
	s.JetStream, err = jetstream.New(s.NATS)
	return err
}

// Close closes the connections, and ends the servers that Open started.
func (s *Servers) Close() error {
	if s.NATS != nil {
		s.NATS.Close()
	}
	var errs []error
	if s.Redis != nil {
		errs = append(errs, s.Redis.Close())
	}
	if s.dev != nil {
		errs = append(errs, s.dev.stop())
	}
	return errors.Join(errs...)
}
