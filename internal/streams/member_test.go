package streams_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
)

const patience = 60 * time.Second

// site is a Redis and a NATS.
type site struct {
	t   *testing.T
	rdb redis.UniversalClient
	js  jetstream.JetStream
	log testenv.Output
	// impatient has members wait only a second for missing answers.
	impatient bool
}

func (s *site) join(instance string) (*streams.Member, error) {
	join := streams.Join
	if s.impatient {
		join = streams.JoinSoon
	}
	return join(s.t.Context(), s.rdb, s.js, streams.Config{}, instance, s.log.Logger())
}

// run joins, and runs the member until the test or the returned function ends it.
func (s *site) run(instance string) (*streams.Member, func()) {
	s.t.Helper()
	m, err := s.join(instance)
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(s.t.Context()))
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := m.Run(ctx); err != nil {
			s.t.Error(err)
		}
	})
	stop := sync.OnceFunc(func() {
		cancel()
		wg.Wait()
	})
	s.t.Cleanup(stop)
	return m, stop
}

func (s *site) inspect() streams.Ownership {
	s.t.Helper()
	state, err := streams.Inspect(s.t.Context(), s.rdb, s.js, streams.Config{})
	if err != nil {
		s.t.Fatal(err)
	}
	return state
}

func TestJoin(t *testing.T) {
	t.Parallel()
	s := &site{t: t, rdb: testenv.Redis(t).Client(), js: testenv.NATS(t).JetStream()}
	if state := s.inspect(); state.Redis != "" || len(state.Owners) != 0 {
		t.Errorf("at first: %+v", state)
	}
	m, stop := s.run("first")
	state := s.inspect()
	want := []streams.Owner{{Stream: "TIMERS", Installation: m.ID()}, {Stream: "TIMERS_RETRY", Installation: m.ID()},
		{Stream: "TIMERS_DEAD", Installation: m.ID()}}
	if state.Redis != m.ID() || !slices.Equal(state.Owners, want) {
		t.Errorf("joined %s: %+v", m.ID(), state)
	}
	testenv.Eventually(t, patience, func() error { // a slow answer is left out
		if living := s.inspect().Living[m.ID()]; len(living) != 1 || living[0].Instance != "first" ||
			living[0].Elsewhere() {
			return fmt.Errorf("living: %+v", living)
		}
		return nil
	}, "the answer of the member")

	// Anybody may put questions and answers on the subject.
	subject := keys.Names{}.InstallationSubject(m.ID())
	for _, question := range []string{"", "id", strings.Repeat("*:", 100), "a:b:c:d"} {
		if _, err := s.js.Conn().Request(subject, []byte(question), patience); err != nil {
			t.Errorf("question %q: %v", question, err)
		}
		if err := s.js.Conn().Publish(subject, []byte(question)); err != nil {
			t.Error(err)
		}
	}
	if state := s.inspect(); state.Redis != m.ID() {
		t.Errorf("after strange questions: %+v", state)
	}
	stop()
	if living := s.inspect().Living[m.ID()]; len(living) != 0 {
		t.Errorf("after the end: %+v", living)
	}
}

// The log of deliveries changes hands with the other streams, so that timerd deliver starts again.
func TestAdoptWithTheLogOfDeliveries(t *testing.T) {
	t.Parallel()
	rdb, js := testenv.Redis(t).Client(), testenv.NATS(t).JetStream()
	if err := streams.Ensure(t.Context(), js, streams.Config{Installation: "old"}); err != nil {
		t.Fatal(err)
	}
	if err := streams.EnsureDelivery(t.Context(), js, streams.Config{}); err != nil {
		t.Fatal(err)
	}
	if err := rdb.Set(t.Context(), keys.Installation, "new", 0).Err(); err != nil {
		t.Fatal(err)
	}
	done, err := streams.Adopt(t.Context(), rdb, js, streams.Config{})
	last := streams.Owner{Stream: "TIMERS_DELIVERY", Installation: "old"}
	if were := done.Were; err != nil || len(were) != 4 || were[3] != last || done.Unknown != nil {
		t.Errorf("Adopt = %+v, %v", done, err)
	}
	if err := streams.EnsureDelivery(t.Context(), js, streams.Config{}); err != nil {
		t.Errorf("timerd deliver does not start: %v", err)
	}
}

// Whoever has no right to ask for the log of deliveries takes the other streams over.
func TestAdoptWithoutTheRightToTheLogOfDeliveries(t *testing.T) {
	t.Parallel()
	rdb, servers := testenv.Redis(t).Client(), testenv.NATS(t, func(o *server.Options) {
		o.Users = []*server.User{{Username: "u", Password: "x", Permissions: &server.Permissions{
			Publish: &server.SubjectPermission{Allow: []string{">"},
				Deny: []string{"$JS.API.STREAM.INFO.TIMERS_DELIVERY"}},
		}}}
		o.NoAuthUser = "u"
	})
	js := servers.JetStream()
	if err := streams.Ensure(t.Context(), js, streams.Config{Installation: "old"}); err != nil {
		t.Fatal(err)
	}
	if err := rdb.Set(t.Context(), keys.Installation, "new", 0).Err(); err != nil {
		t.Fatal(err)
	}
	s := &site{t: t, rdb: rdb, js: js}
	if state := s.inspect(); len(state.Owners) != 3 || state.Unknown == nil {
		t.Errorf("%+v", state)
	}
	done, err := streams.Adopt(t.Context(), rdb, js, streams.Config{})
	if err != nil || done.ID != "new" || len(done.Were) != 3 || done.Unknown == nil {
		t.Errorf("Adopt = %+v, %v", done, err)
	}
}

// In a cluster the key of the identity is in one slot. Members that start at once agree.
func TestJoinInACluster(t *testing.T) {
	t.Parallel()
	cluster, js := testenv.Cluster(t, 3, false), testenv.NATS(t).JetStream()
	ids := make([]string, 4)
	var wg sync.WaitGroup
	for i := range ids {
		s := &site{t: t, rdb: cluster.Client(), js: js}
		wg.Go(func() {
			m, err := s.join(string(rune('a' + i)))
			if err != nil {
				t.Error(err)
				return
			}
			ids[i] = m.ID()
		})
	}
	wg.Wait()
	if ids[0] == "" || len(slices.Compact(ids)) != 1 {
		t.Errorf("identities %q", ids)
	}
}

// A Redis that does not answer at the start, as the master of the key's slot, stops nobody for long where the streams
// have an identity. Once it answers it must have the same.
func TestJoinWhileRedisDoesNotAnswer(t *testing.T) {
	t.Parallel()
	server, js := testenv.Redis(t), testenv.NATS(t).JetStream()
	client := func() redis.UniversalClient {
		return server.Client(func(o *redis.Options) { o.ContextTimeoutEnabled = true })
	}
	first := &site{t: t, rdb: client(), js: js}
	m, err := first.join("first")
	if err != nil {
		t.Fatal(err)
	}
	id := m.ID()
	server.Pause()
	second := &site{t: t, rdb: client(), js: js, impatient: true}
	m, _ = second.run("second")
	if err := m.Healthy(); err == nil || m.Permit() != nil || m.ID() != id {
		t.Errorf("%s of %s: healthy: %v, permitted: %v", m.ID(), id, err, m.Permit())
	}
	server.Resume()
	testenv.Eventually(t, patience, m.Healthy, "the identity to be read")

	server.Pause()
	third := &site{t: t, rdb: client(), js: js, impatient: true}
	stranger, _ := third.run("third")
	server.Resume()
	if err := server.Client().Set(t.Context(), keys.Installation, "somebody", 0).Err(); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, patience, func() bool { return stranger.Permit() != nil }, "the other identity to be noticed")
}

// A timerd of the streams' installation that does not reach its Redis does not know if that is this one.
func TestJoinBesideATimerdThatCannotTell(t *testing.T) {
	t.Parallel()
	server, js := testenv.Redis(t), testenv.NATS(t).JetStream()
	first := &site{t: t, rdb: server.Client(func(o *redis.Options) {
		o.ContextTimeoutEnabled, o.ReadTimeout, o.MaxRetries = true, 200*time.Millisecond, -1
	}), js: js}
	first.run("first")
	server.Pause()
	other := &site{t: t, rdb: testenv.Redis(t).Client(), js: js}
	_, err := other.join("other")
	if err == nil || !strings.Contains(err.Error(), `"first" is running, and does not reach its own Redis`) {
		t.Errorf("joined: %v", err)
	}
	if state := other.inspect(); state.Redis != "" {
		t.Errorf("its Redis has the identity %s", state.Redis)
	}
	server.Resume()
}

// Without the right to the key, the error names the right.
func TestJoinWithoutTheRight(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	admin := server.Client()
	if err := admin.Do(t.Context(), "ACL", "SETUSER", "narrow", "on", ">pw", "+@all", "~timerd:{*").Err(); err != nil {
		t.Fatal(err)
	}
	s := &site{t: t, rdb: server.Client(func(o *redis.Options) { o.Username, o.Password = "narrow", "pw" }),
		js: testenv.NATS(t).JetStream()}
	if _, err := s.join("x"); err == nil || !strings.Contains(err.Error(),
		"let the Redis user read and write timerd:*") {
		t.Errorf("joined: %v", err)
	}
}

// Somebody keeps the streams reserved: timerd still starts, without a mark, and logs the fix.
func TestJoinWhileSomebodyKeepsTheReservation(t *testing.T) {
	t.Parallel()
	s := &site{t: t, rdb: testenv.Redis(t).Client(), js: testenv.NATS(t).JetStream(), impatient: true}
	if err := streams.Ensure(t.Context(), s.js, streams.Config{}); err != nil { // of an earlier version: without a mark
		t.Fatal(err)
	}
	_, err := s.js.CreateConsumer(t.Context(), "TIMERS", jetstream.ConsumerConfig{Durable: "timerd-installation",
		AckPolicy: jetstream.AckExplicitPolicy})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.join("x"); err != nil {
		t.Errorf("joined: %v", err)
	}
	if log := s.log.String(); !strings.Contains(log, "nats consumer rm TIMERS timerd-installation") {
		t.Errorf("the log does not say what to do:\n%s", log)
	}
}

// Whatever is under the key, timerd does not go on without an identity.
func TestJoinWithAStrangeKey(t *testing.T) {
	t.Parallel()
	s := &site{t: t, rdb: testenv.Redis(t).Client(), js: testenv.NATS(t).JetStream(), impatient: true}
	for _, test := range []struct {
		command []any
		want    string
	}{
		{[]any{"SET", keys.Installation, ""}, "is empty; to fix it: redis-cli DEL timerd:installation:id"},
		{[]any{"HSET", keys.Installation, "a", "b"}, "key timerd:installation:id: WRONGTYPE"},
	} {
		if err := s.rdb.Del(t.Context(), keys.Installation).Err(); err != nil {
			t.Fatal(err)
		}
		if err := s.rdb.Do(t.Context(), test.command...).Err(); err != nil {
			t.Fatal(err)
		}
		if _, err := s.join("x"); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%q: %v, want %q", test.command, err, test.want)
		}
	}
}
