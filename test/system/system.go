package system

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/devserver"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
)

// Patience bounds every wait of these tests on a slow machine. It says nothing
// about how long things should take.
const Patience = 3 * time.Minute

// Secret is to show nowhere.
const Secret = "s3cr3t"

// System is a Redis, a NATS and any number of timerd processes.
type System struct {
	T     testing.TB
	Redis *testenv.RedisServer
	NATS  *testenv.NATSServer
	RDB   *redis.Client
	JS    jetstream.JetStream
	Env   map[string]string
}

// New starts the servers of a system, which end with t.
func New(t testing.TB, opts ...devserver.RedisOption) *System {
	t.Helper()
	s := &System{T: t, Redis: testenv.Redis(t, opts...), NATS: testenv.NATS(t)}
	s.RDB, s.JS = s.Redis.Client(), s.NATS.JetStream()
	s.Env = map[string]string{
		"TIMERD_REDIS_URL":  s.Redis.URL(0),
		"TIMERD_NATS_URL":   s.NATS.URL(),
		"TIMERD_NAMESPACES": "*",
		"TIMERD_LEASE":      "2s",
	}
	return s
}

// ReplaceNATS gives the system another NATS, with these options.
func (s *System) ReplaceNATS(opts ...testenv.NATSOption) {
	s.T.Helper()
	s.NATS = testenv.NATS(s.T, opts...)
	s.JS = s.NATS.JetStream()
	s.Env["TIMERD_NATS_URL"] = s.NATS.URL()
}

// Do runs a Redis command.
func (s *System) Do(args ...any) any {
	s.T.Helper()
	reply, err := s.RDB.Do(s.T.Context(), args...).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		s.T.Fatalf("%q: %v", args, err)
	}
	return reply
}

// Due returns when a key runs out, in unix ms.
func (s *System) Due(key string) int64 {
	s.T.Helper()
	at, err := s.RDB.PExpireTime(s.T.Context(), key).Result()
	if err != nil || at < 0 {
		s.T.Fatalf("%q has no TTL: %v, %v", key, at, err)
	}
	return at.Milliseconds()
}

// Now returns the server's clock in unix ms.
func (s *System) Now() int64 {
	s.T.Helper()
	now, err := s.RDB.Time(s.T.Context()).Result()
	if err != nil {
		s.T.Fatal(err)
	}
	return now.UnixMilli()
}

// After waits until the server's clock is past the given unix ms.
func (s *System) After(ms int64) {
	s.T.Helper()
	testenv.Eventually(s.T, Patience, func() bool {
		now, err := s.RDB.Time(context.WithoutCancel(s.T.Context())).Result()
		return err == nil && now.UnixMilli() > ms
	}, "the clock to pass")
}

// LastSeen returns the last heartbeat of a timerd that Redis has, in unix ms.
func (s *System) LastSeen() int64 {
	s.T.Helper()
	seen, err := s.RDB.HGet(s.T.Context(), keys.Single.Data(), ":s:").Int64()
	if err != nil {
		s.T.Fatal(err)
	}
	return seen
}

// Adopted waits until the index holds a plain key as it is now. On a stalled machine the key may have run out by then:
// its event shows whether it was adopted.
func (s *System) Adopted(key string) {
	s.T.Helper()
	testenv.Eventually(s.T, Patience, func() error {
		want, err := s.RDB.PExpireTime(s.T.Context(), key).Result()
		if err != nil || want == gone {
			return err
		}
		at, err := s.RDB.ZScore(s.T.Context(), keys.Single.Due(), key).Result()
		if err == nil && int64(at) != want.Milliseconds() {
			err = fmt.Errorf("due at %.0f, want %d", at, want.Milliseconds())
		}
		return err
	}, "adoption of "+key)
}

// gone is the reply of PEXPIRETIME for a missing key.
const gone = time.Duration(-2)

// Expires runs a command that gives a key a TTL, and returns when it runs out, in unix ms.
func (s *System) Expires(key string, args ...any) int64 {
	s.T.Helper()
	var at *redis.DurationCmd
	_, err := s.RDB.TxPipelined(s.T.Context(), func(pipe redis.Pipeliner) error {
		pipe.Do(s.T.Context(), args...)
		at = pipe.PExpireTime(s.T.Context(), key)
		return nil
	})
	if err != nil || at.Val() < 0 {
		s.T.Fatalf("%q: %v, and the key runs out at %v", args, err, at)
	}
	return at.Val().Milliseconds()
}

// LeastPrivileged returns deploy/users.acl with passwords, and with a default
// user for the test.
func LeastPrivileged(t *testing.T) string {
	t.Helper()
	acl, err := os.ReadFile(filepath.Join("..", "..", "..", "deploy", "users.acl")) // from the folder of a test
	if err != nil {
		t.Fatal(err)
	}
	text := strings.ReplaceAll(string(acl), "resetpass", ">secret")
	return strings.Replace(text, "user default off", "user default on nopass ~* &* +@all", 1)
}
