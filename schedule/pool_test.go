package schedule_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/devserver"
)

// servers are Redis servers that wait for the next test: starting one costs more than most tests do with it.
var servers pool

// pool keeps the servers of tests that change nothing but data and functions. Tests that change settings, reset
// counters of a server, or stop it have a server of their own, from testenv.
type pool struct {
	mu   sync.Mutex
	idle []*devserver.Redis
}

// client returns a client of an empty server that no other test has until this one ends.
func (p *pool) client(t testing.TB) *redis.Client {
	t.Helper()
	s, err := p.take(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.giveBack(t, s) })
	rdb := redis.NewClient(&redis.Options{Addr: s.Addr()})
	t.Cleanup(func() { _ = rdb.Close() }) // the server is shown where the test has failed
	_, err = rdb.Pipelined(t.Context(), func(pipe redis.Pipeliner) error {
		pipe.FlushAll(t.Context())
		pipe.FunctionFlush(t.Context())
		pipe.ScriptFlush(t.Context())
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return rdb
}

func (p *pool) take(ctx context.Context) (*devserver.Redis, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if last := len(p.idle) - 1; last >= 0 {
		s := p.idle[last]
		p.idle = p.idle[:last]
		return s, nil
	}
	return devserver.StartRedis(ctx, devserver.Binary(os.Getenv(devserver.BinaryEnv)))
}

// giveBack keeps a server for others. That of a failed test is shown and ended.
func (p *pool) giveBack(t testing.TB, s *devserver.Redis) {
	t.Helper()
	if !t.Failed() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.idle = append(p.idle, s)
		return
	}
	t.Logf("end of the log of the server at %s:\n%s", s.Addr(), s.Log())
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// close ends the servers.
func (p *pool) close() (err error) {
	for _, s := range p.idle {
		if failed := s.Close(); failed != nil {
			err = errors.Join(err, fmt.Errorf("closing the server at %s: %w", s.Addr(), failed))
		}
	}
	return err
}
