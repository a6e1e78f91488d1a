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

// SingleRedis is one server.
type SingleRedis struct {
	server *devserver.Redis
	client *redis.Client
	clock  *lab.Clock // for when it is ahead
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

// URL is that of the server.
func (s *SingleRedis) URL() string { return asTimerd(s.server.URL(0)) }

// Addr is that of the server.
func (s *SingleRedis) Addr() string { return s.server.Addr() }

// Node returns the one.
func (s *SingleRedis) Node(context.Context, string) (*redis.Client, error) { return s.client, nil }

// Masters returns the one.
func (s *SingleRedis) Masters(context.Context) ([]*redis.Client, error) { return s.Servers(), nil }

// Servers returns the one.
func (s *SingleRedis) Servers() []*redis.Client { return []*redis.Client{s.client} }

// Refresh has nothing to look for.
func (s *SingleRedis) Refresh(context.Context) {}

// MasterNames is always the same.
func (s *SingleRedis) MasterNames(context.Context) string { return "" }

// Kill kills the server. Mending starts it again.
func (s *SingleRedis) Kill(ctx context.Context, _ int) (mend func() error, err error) {
	return func() error { return s.server.Start(ctx) }, s.server.Kill()
}

// expires is how long a server whose clock is ahead runs: its search for expired keys takes no more for so few.
const expires = 1500 * time.Millisecond

// RestartAhead has the server run for a moment with its clock ahead, as a machine may whose clock is
// set right only some time after its boot, and then as ever. Nobody reaches it meanwhile: what runs out then, it
// deletes.
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
			err = devserver.Permanent(fmt.Errorf("servers: the clock of Redis is ahead by %v, want %v", time.Until(now), by))
		}
		return err
	})
	if err == nil {
		<-time.After(expires)
	}
	return errors.Join(err, socket.Close(), kill(p), s.server.Start(ctx))
}

// socketName is where a server listens whose clock is ahead.
const socketName = "ahead.sock"

func (s *SingleRedis) startAhead() (*devserver.Process, error) {
	cmd := exec.CommandContext(context.Background(), s.server.Program(), "redis.conf", "--port", "0", "--unixsocket", socketName)
	cmd.Dir, cmd.Env = s.server.Dir(), append(cmd.Environ(), s.clock.Environment()...)
	return devserver.StartProcess(cmd)
}

// Close ends the server.
func (s *SingleRedis) Close() error { return errors.Join(s.client.Close(), s.server.Close()) }
