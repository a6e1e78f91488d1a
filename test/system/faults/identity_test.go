package faults_test

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/test/system"
)

// ownNames are the settings by which a second installation gets streams of its own.
func ownNames() []string {
	return []string{"TIMERD_SUBJECT_PREFIX=second.timers", "TIMERD_STREAM=SECOND"}
}

// identity returns the installation's identity in Redis, "" for none.
func identity(t *testing.T, rdb *redis.Client) string {
	t.Helper()
	id, err := rdb.Get(context.WithoutCancel(t.Context()), keys.Installation).Result()
	if err != nil && err != redis.Nil { //nolint:errorlint // go-redis returns it as it is
		t.Fatal(err)
	}
	return id
}

// owners returns the identities in the metadata of the streams, "-" for none, "?" for no stream.
func owners(s *system.System) []string {
	s.T.Helper()
	var all []string
	for _, name := range []string{"TIMERS", "TIMERS_RETRY", "TIMERS_DEAD"} {
		owner := "?"
		if stream, err := s.JS.Stream(s.T.Context(), name); err == nil {
			owner = cmp.Or(stream.CachedInfo().Config.Metadata[keys.InstallationMetadata], "-")
		}
		all = append(all, owner)
	}
	return all
}

// owned waits until every stream belongs to an installation.
func owned(s *system.System, id string) {
	s.T.Helper()
	testenv.Eventually(s.T, system.Patience, func() error {
		if got := owners(s); !slices.Equal(got, []string{id, id, id}) {
			return fmt.Errorf("the streams belong to %q, want %s", got, id)
		}
		return nil
	}, "the streams to belong to the installation")
}

// refused checks that a process ended at its start, for a reason.
func refused(p *system.Daemon, want ...string) {
	p.T.Helper()
	if code := p.Ends(); code != 1 {
		p.T.Errorf("exit code %d, want %d", code, 1)
	}
	for _, text := range want {
		if !strings.Contains(p.Log.String(), text) {
			p.T.Errorf("want %q in\n%s", text, p.Log)
		}
	}
}

// unready waits until the process is not ready because of its installation, for a reason.
func unready(p *system.Daemon, want string) {
	p.T.Helper()
	testenv.Eventually(p.T, system.Patience, func() error {
		status, body, err := p.Get("/readyz")
		said := slices.ContainsFunc(strings.Split(body, "\n"), func(line string) bool {
			_, fault, failed := strings.Cut(line, ": failed: ")
			return failed && strings.Contains(fault, want)
		})
		if err == nil && (status != http.StatusServiceUnavailable || !said) {
			err = fmt.Errorf("/readyz: %d %s", status, body)
		}
		return err
	}, "not to be ready: "+want)
}

const bothWays = "timerd doctor --adopt-streams"

// Two databases of one Redis have a timer of the same key that is due in the same millisecond, as EXAT makes likely. On
// shared streams the two firings have one id, and JetStream drops the second.
func TestTwoInstallationsOnOneNATS(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	other := s.Redis.Client(func(o *redis.Options) { o.DB = 1 })
	second := []string{"TIMERD_REDIS_URL=" + s.Redis.URL(1)}
	s.Start()

	p := s.Launch(second...)
	refused(p, "stream TIMERS: it belongs to installation", "TIMERD_SUBJECT_PREFIX and TIMERD_STREAM", bothWays)
	if identity(t, other) == "" || identity(t, other) == identity(t, s.RDB) {
		t.Errorf("identities %q and %q", identity(t, s.RDB), identity(t, other))
	}
	owned(s, identity(t, s.RDB))

	s.Start(slices.Concat(second, ownNames())...)
	first, theirs := s.Collect(), testenv.Collect(t, s.JS, "SECOND")
	due := s.Now()/1000 + 3
	for _, rdb := range []*redis.Client{s.RDB, other} {
		if err := rdb.Do(t.Context(), "SET", "a:b:c:1", fmt.Sprint("of database ", rdb.Options().DB), "EXAT",
			due).Err(); err != nil {
			t.Fatal(err)
		}
	}
	s.Expect(first, "a:b:c:1=of database 0")
	m := theirs.Wait(1, system.Patience)[0]
	if m.Subject != "second.timers.fired.a.b.c" || !strings.Contains(string(m.Data), "of database 1") ||
		m.ID() != first.Wait(1, system.Patience)[0].ID() {
		t.Errorf("the second installation fired %s on %s", m.Data, m.Subject)
	}
}

// The flushed Redis of an installation is given the identity of the streams, unless another Redis has it.
func TestFlushedRedisGoesOn(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	p := s.Start()
	c := s.Collect()
	id := identity(t, s.RDB)
	s.Do("FLUSHALL")
	testenv.Eventually(t, system.Patience, func() bool { return identity(t, s.RDB) == id },
		"the identity to be put back")

	another := testenv.Redis(t)
	stranger := s.Launch("TIMERD_REDIS_URL=" + another.URL(0))
	refused(stranger, "it belongs to installation", id, bothWays)
	if got := identity(t, another.Client()); got == "" || got == id {
		t.Errorf("the refused one's Redis has the identity %q, want one of its own", got)
	}

	// Another timerd of this Redis starts before the first one has put the identity back.
	s.Do("DEL", keys.Installation)
	s.Start().Stop()
	p.Stop()
	s.Do("FLUSHALL")
	s.Start()
	if got := identity(t, s.RDB); got != id {
		t.Errorf("identity %s, want %s", got, id)
	}
	s.Do("SET", "a:b:c:1", "x", "PX", system.Soon)
	s.Expect(c, "a:b:c:1=x")
}

// Redis was replaced while timerd was stopped.
func TestAdoptStreams(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	p := s.Start()
	was := identity(t, s.RDB)
	c := s.Collect()
	s.Do("FCALL", "timer_set", 1, "a:b:c:1", "x", "PX", 200)
	s.Expect(c, "a:b:c:1=x")

	replacement := testenv.Redis(t)
	now := replacement.Client()
	replaced := map[string]string{"TIMERD_REDIS_URL": replacement.URL(0), "TIMERD_NATS_URL": s.NATS.URL(),
		"TIMERD_NAMESPACES": "*", "TIMERD_LEASE": "2s"}
	if err := now.Set(t.Context(), keys.Installation, "replacement", 0).Err(); err != nil {
		t.Fatal(err)
	}
	other := with(s, replaced)
	if code, out, errs := other.Run("", "doctor", "--adopt-streams"); code != 1 ||
		!strings.Contains(errs, "is running: stop that timerd first") || out != "" {
		t.Errorf("while the other runs: exit code %d\n%s%s", code, out, errs)
	}
	if code, out, _ := other.Run("", "doctor"); code != 1 || strings.Count(out, "fail  installation") != 3 ||
		!strings.Contains(out, `of it these are running: "`) {
		t.Errorf("doctor: exit code %d\n%s", code, out)
	}
	owned(s, was)
	p.Stop()
	s.Retry(c.Wait(1, system.Patience)[0], "Timer-Delay", "0s") // the next owner of the streams carries it out
	refused(s.Launch("TIMERD_REDIS_URL="+replacement.URL(0)), bothWays)
	out := other.OK("doctor", "--adopt-streams")
	if strings.Count(out, was) != 3 || strings.Count(out, "belongs to installation \"replacement\" now\n") != 3 {
		t.Errorf("adopted:\n%s", out)
	}
	owned(s, "replacement")
	if out := other.OK("doctor", "--adopt-streams"); !strings.Contains(out, "nothing to do") {
		t.Errorf("again:\n%s", out)
	}
	if code, out, errs := other.Run("", "doctor", "--adopt-streams", "--json"); code != 2 {
		t.Errorf("with --json: %d\n%s%s", code, out, errs)
	}
	s.Start("TIMERD_REDIS_URL=" + replacement.URL(0))
	if _, out, _ := other.Run("", "doctor"); !strings.Contains(out,
		"ok    installation      replacement, in Redis and the streams") {
		t.Errorf("doctor:\n%s", out)
	}
	if err := now.Do(t.Context(), "SET", "a:b:c:2", "y", "PX", system.Soon).Err(); err != nil {
		t.Fatal(err)
	}
	s.Expect(c, "a:b:c:1=x", "a:b:c:1=x", "a:b:c:2=y")
	refused(s.Launch(), bothWays)
}

// The streams of the NATS server within timerd are there only while it runs: the command runs it for a moment.
func TestAdoptEmbeddedStreams(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	env := map[string]string{
		"TIMERD_NATS_URL":  "embedded://timerd:" + system.Secret + "@" + testenv.FreeAddr(t),
		"TIMERD_DATA_DIR":  t.TempDir(),
		"TIMERD_REDIS_URL": s.Redis.URL(1), "TIMERD_NAMESPACES": "*",
	}
	settings := []string{"TIMERD_NATS_URL=" + env["TIMERD_NATS_URL"], "TIMERD_DATA_DIR=" + env["TIMERD_DATA_DIR"]}
	p := s.Start(settings...)
	if err := s.Redis.Client(func(o *redis.Options) { o.DB = 1 }).Set(t.Context(), keys.Installation, "replacement",
		0).Err(); err != nil {
		t.Fatal(err)
	}
	other := with(s, env)
	if code, _, errs := other.Run("", "doctor", "--adopt-streams"); code != 1 ||
		!strings.Contains(errs, "is running: stop that timerd first") {
		t.Errorf("while the other runs: exit code %d\n%s", code, errs)
	}
	p.Stop()
	if out := other.OK("doctor", "--adopt-streams"); strings.Count(out,
		"belongs to installation \"replacement\" now\n") != 3 {
		t.Errorf("adopted:\n%s", out)
	}
	s.Start(append(settings, "TIMERD_REDIS_URL="+s.Redis.URL(1))...)
}

// What a timerd does whose streams become another installation's while it runs: it publishes nothing and takes no retry
// request, loses nothing, and goes on when it has them back.
func TestStreamsTakenOverWhileRunning(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	p := s.Start()
	id := identity(t, s.RDB)
	c := s.Collect()
	s.Do("FCALL", "timer_set", 1, "a:b:c:1", "one", "PX", 100)
	s.Expect(c, "a:b:c:1=one")
	for _, name := range []string{"TIMERS_RETRY", "TIMERS"} { // the first that is somebody's is named
		setOwner(s, name, "somebody")
		unready(p, "stream "+name+": it belongs to installation \"somebody\"")
	}
	s.Retry(c.Wait(1, system.Patience)[0], "Timer-Delay", "0s")
	s.Do("FCALL", "timer_set", 1, "a:b:c:2", "two", "PX", 100)
	s.After(s.Now() + 3000)
	if n := len(c.Wait(1, system.Patience)); n != 1 {
		t.Errorf("%d events while the streams are somebody's", n)
	}
	info, err := s.JS.Stream(t.Context(), "TIMERS_RETRY")
	if err != nil || info.CachedInfo().State.Msgs != 1 {
		t.Errorf("requests while the stream is somebody's: %+v, %v", info.CachedInfo().State, err)
	}
	for _, name := range []string{"TIMERS", "TIMERS_RETRY"} {
		setOwner(s, name, id)
	}
	p.AwaitReady(true)
	s.Expect(c, "a:b:c:1=one", "a:b:c:1=one", "a:b:c:2=two")
	s.NoRequests()

	// Another identity in Redis is as bad.
	s.Do("SET", keys.Installation, "somebody")
	unready(p, "restart timerd")
	s.Do("FCALL", "timer_set", 1, "a:b:c:3", "three", "PX", 100)
	refused(s.Launch(), "stream TIMERS: it belongs to installation", bothWays)
	s.Do("SET", keys.Installation, id)
	p.AwaitReady(true)
	s.Expect(c, "a:b:c:1=one", "a:b:c:1=one", "a:b:c:2=two", "a:b:c:3=three")
}

// setOwner marks a stream as an installation's, as an operator could.
func setOwner(s *system.System, stream, id string) {
	s.T.Helper()
	found, err := s.JS.Stream(s.T.Context(), stream)
	if err != nil {
		s.T.Fatal(err)
	}
	config := found.CachedInfo().Config
	if config.Metadata[keys.InstallationMetadata] = id; id == "" {
		delete(config.Metadata, keys.InstallationMetadata)
	}
	if _, err := s.JS.UpdateStream(s.T.Context(), config); err != nil {
		s.T.Fatal(err)
	}
}

// Existing streams get the identity, and keep their messages.
func TestStreamsWithoutIdentity(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	config := jetstream.StreamConfig{Name: "TIMERS", Subjects: []string{"timers.fired.>"}, Duplicates: time.Minute,
		MaxAge: time.Hour, Metadata: map[string]string{"team": "a"}}
	if _, err := s.JS.CreateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	s.Start()
	id := identity(t, s.RDB)
	owned(s, id)
	stream, err := s.JS.Stream(t.Context(), "TIMERS")
	if err != nil {
		t.Fatal(err)
	}
	if got := stream.CachedInfo().Config; got.MaxAge != time.Hour || got.Duplicates != time.Minute ||
		got.Metadata["team"] != "a" {
		t.Errorf("the stream is %+v", got)
	}

	for _, name := range []string{"TIMERS_RETRY", "TIMERS_DEAD"} { // an upgrade meets such streams
		setOwner(s, name, "")
	}
	owned(s, id)
	for _, name := range []string{"TIMERS", "TIMERS_RETRY"} {
		if err := s.JS.DeleteStream(t.Context(), name); err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, system.Patience, func() error {
			_, err := s.JS.Stream(t.Context(), name)
			return err
		}, "the stream to be made again")
	}
	owned(s, id)
}

// Of two installations that start at the same moment on a fresh NATS one gets the streams; several timerds of one
// installation all start.
func TestInstallationsStartAtOnce(t *testing.T) {
	t.Parallel()
	for round, existing := range []bool{false, true} {
		s := system.New(t)
		if existing {
			for stream, retention := range map[string]jetstream.RetentionPolicy{"TIMERS": jetstream.LimitsPolicy,
				"TIMERS_RETRY": jetstream.WorkQueuePolicy, "TIMERS_DEAD": jetstream.LimitsPolicy} {
				kind := map[string]string{"TIMERS": keys.Fired, "TIMERS_RETRY": keys.Retry,
					"TIMERS_DEAD": keys.Dead}[stream]
				config := jetstream.StreamConfig{Name: stream, Subjects: []string{keys.SubjectAll("timers", kind)},
					Retention: retention}
				if _, err := s.JS.CreateStream(t.Context(), config); err != nil {
					t.Fatal(err)
				}
			}
		}
		var all [2][]*system.Daemon
		for range 2 {
			for db := range all {
				all[db] = append(all[db], s.Launch("TIMERD_REDIS_URL="+s.Redis.URL(db)))
			}
		}
		winner := 0
		testenv.Eventually(t, system.Patience, func() error {
			owners := owners(s)
			for db := range all {
				id := identity(t, s.Redis.Client(func(o *redis.Options) { o.DB = db }))
				if id != "" && slices.Equal(owners, []string{id, id, id}) {
					winner = db
					return nil
				}
			}
			return fmt.Errorf("the streams belong to %q", owners)
		}, "one installation to have the streams")
		for _, p := range all[1-winner] {
			refused(p, bothWays)
		}
		for _, p := range all[winner] {
			p.AwaitReady(true)
		}
		t.Logf("round %d: database %d got the streams", round, winner)
	}
}

// A NATS user with the rights that timerd needed before: it may not mark streams nor ask who else is there.
func TestIdentityWithFewRights(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	s.NATS = testenv.NATS(t, func(o *server.Options) {
		o.Users = []*server.User{
			{Username: "admin", Password: "admin"},
			{Username: "documented", Password: "timerd", Permissions: &server.Permissions{ // as deploy/README.md has it
				Publish: &server.SubjectPermission{Allow: []string{"$JS.API.>", "$JS.ACK.>", "timers.fired.>",
					"timers.dead.>", "timers.state.>", "timers.history.>", "timers.installation.>"}},
				Subscribe: &server.SubjectPermission{Allow: []string{"_INBOX.>", "timers.installation.>"}},
				Response:  &server.ResponsePermission{MaxMsgs: 1, Expires: time.Minute},
			}},
			{Username: "timerd", Password: "timerd", Permissions: &server.Permissions{
				Publish: &server.SubjectPermission{Allow: []string{"$JS.API.>", "$JS.ACK.>", "timers.fired.>",
					"timers.dead.>"}, Deny: []string{"$JS.API.STREAM.UPDATE.>"}},
				Subscribe: &server.SubjectPermission{Allow: []string{"_INBOX.>"}},
			}},
		}
	})
	s.Env["TIMERD_NATS_URL"] = "nats://timerd:timerd@" + s.NATS.Addr()
	s.JS = s.NATS.JetStream(nats.UserInfo("admin", "admin"))
	config := jetstream.StreamConfig{Name: "TIMERS", Subjects: []string{"timers.fired.>"}}
	if _, err := s.JS.CreateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	p := s.Start()
	c := s.Collect()
	id := identity(t, s.RDB)
	if got := owners(s); !slices.Equal(got, []string{"-", id, id}) {
		t.Errorf("the streams belong to %q", got)
	}
	if !strings.Contains(p.Log.String(), "cannot mark a stream as this installation's") {
		t.Errorf("no warning:\n%s", p.Log)
	}
	s.Do("FCALL", "timer_set", 1, "a:b:c:1", "x", "PX", 200)
	s.Expect(c, "a:b:c:1=x")
	s.Env["TIMERD_NATS_URL"] = "nats://admin:admin@" + s.NATS.Addr() // of the commands
	s.StatusSays(0, "warn  ", "a stream has no mark of this installation, so another one may take it for its own: ",
		"other timerds of this installation cannot be asked whether they serve the same Redis")
	p.ReadySays(http.StatusOK, "guards: failed: other timerds of this installation cannot be asked ")
	p.Measures(true, `timerd_problem\{check="guards"\} 1`)
	s.Env["TIMERD_NATS_URL"] = "nats://timerd:timerd@" + s.NATS.Addr()
	p.Stop()
	s.Do("FLUSHALL")
	s.Start().Stop()
	if got := identity(t, s.RDB); got != id {
		t.Errorf("identity %s, want %s", got, id)
	}

	p = s.Start("TIMERD_NATS_URL=nats://documented:timerd@" + s.NATS.Addr())
	owned(s, id)
	stranger := s.Launch("TIMERD_NATS_URL=nats://documented:timerd@"+s.NATS.Addr(), "TIMERD_REDIS_URL="+s.Redis.URL(1))
	refused(stranger, bothWays)
	for _, p := range []*system.Daemon{p, stranger} {
		if strings.Contains(strings.ToLower(p.Log.String()), "permissions violation") {
			t.Errorf("it lacks rights:\n%s", p.Log)
		}
	}
}

// A copy of Redis has the identity too.
func TestCopyOfRedis(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	p := s.Start()
	another := testenv.Redis(t)
	if err := another.Client().Set(t.Context(), keys.Installation, identity(t, s.RDB), 0).Err(); err != nil {
		t.Fatal(err)
	}
	twin := s.Launch("TIMERD_REDIS_URL=" + another.URL(0))
	const want = "is of the same installation"
	unready(twin, want)
	unready(p, want)
	twin.Stop()
	p.AwaitReady(true)
}
