package servers

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/devserver"
	"github.com/timerd-io/timerd/internal/testenv/lab"
)

// SingleRedis is a single server.
type SingleRedis struct {
	server *devserver.Redis
	client *redis.Client
	clock  *lab.Clock // sets the server's clock ahead
}

func newSingle(ctx context.Context, clock *lab.Clock) (*SingleRedis, error) {
	server, err := devserver.StartRedis(ctx, durable()...)
	if err != nil {
		return nil, err
	}
	return &SingleRedis{server, newClient(server), clock}, nil
}

// Mode implements Redis, as the methods that follow do.
func (s *SingleRedis) Mode() string { return "standalone" }

// URL is the server's URL.
func (s *SingleRedis) URL() string { return asTimerd(s.server.URL(0)) }

// Addr is the server's address.
func (s *SingleRedis) Addr() string { return s.server.Addr() }

// Node returns the only server.
func (s *SingleRedis) Node(context.Context, string) (*redis.Client, error) { return s.client, nil }

// Masters returns the only server.
func (s *SingleRedis) Masters(context.Context) ([]*redis.Client, error) { return s.Servers(), nil }

// Servers returns the only server.
func (s *SingleRedis) Servers() []*redis.Client { return []*redis.Client{s.client} }

// Refresh does nothing: the server never changes.
func (s *SingleRedis) Refresh(context.Context) {}

// MasterNames returns the same text at all times.
func (s *SingleRedis) MasterNames(context.Context) string { return "" }

// Kill kills the server. The repair starts it again.
func (s *SingleRedis) Kill(ctx context.Context, _ int) (mend func() error, err error) {
	return func() error { return s.server.Start(ctx) }, s.server.Kill()
}

// aheadTime is the running time of a server whose clock is ahead. In that time it finds all expired keys, because there
// are few.
const aheadTime = 1500 * time.Millisecond

// RestartAhead runs the server for a moment with its clock ahead, like a machine whose clock is corrected some time
// after its boot, and then with the right clock. While the clock is ahead, no client reaches the server, and it deletes
// the keys that run out.
func (s *SingleRedis) RestartAhead(ctx context.Context, by time.Duration) (err error) {
	if err := errors.Join(s.server.Kill(), s.clock.Set(by)); err != nil {
		return err
	}
	p, err := s.startAhead()
	if err != nil {
		return err
	}
	socket := redis.NewClient(&redis.Options{Network: "unix", Addr: filepath.Join(s.server.Dir(), socketName)})
	err = devserver.Until(ctx, startTimeout, func() error {
		now, err := socket.Time(ctx).Result()
		if err == nil && time.Until(now) < by/2 {
			err = devserver.Permanent(fmt.Errorf("servers: the clock of Redis is ahead by %v, want %v", time.Until(now),
				by))
		}
		return err
	})
	if err == nil {
		<-time.After(aheadTime)
	}
	return errors.Join(err, socket.Close(), kill(p), s.server.Start(ctx))
}

// socketName is the name of the socket of a server whose clock is ahead.
const socketName = "ahead.sock"

func (s *SingleRedis) startAhead() (*devserver.Process, error) {
	cmd := exec.CommandContext(context.Background(), s.server.Program(), "redis.conf", "--port", "0", "--unixsocket",
		socketName)
	cmd.Dir, cmd.Env = s.server.Dir(), append(cmd.Environ(), s.clock.Environment()...)
	return devserver.StartProcess(cmd)
}

// Close ends the server.
func (s *SingleRedis) Close() error { return errors.Join(s.client.Close(), s.server.Close()) }
