package faults_test

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/test/system"
)

// A backup of Redis is put back, of before many timers have fired, a repeating one among them, and others have become
// dead letters. Once it is reconciled with the streams none of them is left, and all others fire.
func TestReconcileARestoredRedis(t *testing.T) {
	t.Parallel()
	const fired, dead, later = 40, 5, 20
	s := system.New(t)
	p := s.Start()
	c := s.Collect()
	held := []string{"shop:fired", "shop:report", "shop:dead"} // until the backup is made
	for _, namespace := range held {
		s.Says(0, "hold "+namespace)
	}
	set := func(app string, n int, ms any) {
		for i := range n {
			s.Do("FCALL", "timer_set", 1, fmt.Sprintf("%s:t:%d", app, i), i, "PX", ms)
		}
	}
	set("shop:fired", fired, 20)
	set("shop:dead", dead, 20)
	set("shop:later", later, 3600_000)
	const repeating = "shop:report:t:1"
	first := s.Repeats(repeating, "p", 500)
	s.After(first + 20)
	backup := s.BackUp()
	p.AwaitReady(true)

	for _, namespace := range held[:2] {
		s.Says(0, "resume "+namespace)
	}
	s.Says(0, "resume shop:dead --dead")
	s.Letters(dead)
	c.WaitFunc(system.Patience, system.AtLeast(fired+3))
	p.Stop()
	stored := func() int {
		t.Helper()
		stream, err := s.JS.Stream(t.Context(), "TIMERS")
		if err != nil {
			t.Fatal(err)
		}
		return int(stream.CachedInfo().State.Msgs)
	}
	before := s.Events(c, stored())
	occurrences := len(system.Occurred(before, repeating, first))

	s.PutBack(backup)
	s.Says(0, "reconcile --dry-run", fmt.Sprintf("%d timers to end", fired+dead+occurrences))
	s.Says(1, "reconcile", "nothing was done")
	s.Says(0, "reconcile --yes", fmt.Sprintf("%d timers ended", fired+dead+occurrences))
	s.Says(0, "reconcile --yes", "0 timers ended")
	left := s.Says(0, "ls")
	if n := strings.Count(left, "shop:"); n != later+1 || strings.Count(left, "shop:later") != later {
		t.Errorf("the timers after it:\n%s", left)
	}

	p = s.Start()
	for _, namespace := range held { // the backup has the holds
		s.Says(0, "resume "+namespace)
	}
	c.WaitFunc(system.Patience, system.AtLeast(len(before)+2))
	s.Balances()
	p.Stop()
	all := s.Events(c, stored())
	if got := system.Occurred(all, repeating, first); len(got) != occurrences+len(all)-len(before) {
		t.Errorf("%d occurrences, then %q", occurrences, got)
	}
	for i, got := range system.Occurred(all, repeating, first) {
		if _, rest, _ := strings.Cut(got, " "); rest != fmt.Sprintf("%d p", i+1) {
			t.Errorf("occurrence %q, want number %d", got, i+1)
		}
	}
	s.Letters(dead)
}

// What keeps reconcile from beginning is named, with the way on.
func TestReconcileRefuses(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	p := s.Start()
	c := s.Collect()
	s.Says(1, "reconcile", "a timerd is at work")
	for i := range 3 {
		s.Do("FCALL", "timer_set", 1, fmt.Sprintf("shop:a:t:%d", i), "p", "PX", 20)
	}
	s.Events(c, 3)
	p.Kill()
	s.Says(1, "reconcile --since 1h", "the stream TIMERS reaches back to ")
	s.Says(0, "reconcile --yes --since 0s", "0 events and 0 dead letters read")
	stream, err := s.JS.Stream(t.Context(), "TIMERS")
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.DeleteMsg(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	dead, err := s.JS.Stream(t.Context(), "TIMERS_DEAD")
	if err != nil {
		t.Fatal(err)
	}
	if err := dead.Purge(t.Context(), jetstream.WithPurgeSequence(10)); err != nil { // as dead letters are replayed
		t.Fatal(err)
	}
	_, _, errs := s.Run("", "reconcile", "--since", "1h")
	_, fix, ok := strings.Cut(errs, "timerd reconcile --since ")
	if !ok {
		t.Fatalf("no way on: %s", errs)
	}
	s.Says(0, "reconcile --yes --since "+strings.Fields(fix)[0], "2 events and 0 dead letters read")
	s.Do("DEL", keys.Single.Members())
	s.Do("DEL", keys.Single.Silent())
	s.Says(1, "reconcile", "there is no heartbeat in Redis")
	s.Says(2, "reconcile --since 2999-01-01T00:00:00Z", "lies ahead")
}

// A webhook's retry that was asked for since the backup is set again, once. Events of other consumers are listed, and
// fire again by that list.
func TestReconcileSetsLostRetriesAgain(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	p := s.Start("TIMERD_RETRY=*=1h")
	c := s.Collect()
	m := system.NewMerchant(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) })
	d := s.Deliverer(system.Webhooks(t, "pay "+m.URL))
	const hook, other = "pay:order:callback:1", "shop:order:timeout:1"
	s.Says(0, "hold *")
	for _, key := range []string{hook, other} {
		s.Do("FCALL", "timer_set", 1, key, "{}", "PX", 20)
	}
	s.Holds("*", 2)
	backup := s.BackUp()
	p.AwaitReady(true)
	s.Says(0, "resume *")
	s.Events(c, 2)
	deliveries := testenv.Collect(t, s.JS, "TIMERS_DELIVERY")
	failed := deliveries.WaitFunc(system.Patience, system.AtLeast(1))[0]
	// Another group of deliverers had success with the same event.
	if _, err := s.JS.Publish(t.Context(), failed.Subject, bytes.Replace(failed.Data, []byte(`"result":"retry"`),
		[]byte(`"result":"delivered"`), 1)); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, system.Patience, func() error { // the retry, which the backup has not
		if n := s.RDB.ZCard(t.Context(), keys.Single.Due()).Val(); n != 1 {
			return fmt.Errorf("%d timers", n)
		}
		return nil
	}, "the retry")
	d.Stop()
	p.Stop()

	s.PutBack(backup)
	file := filepath.Join(t.TempDir(), "fired.jsonl")
	s.Says(0, "reconcile --dry-run --list "+file, "2 timers to end", "1 webhook to set again")
	if out := s.Says(0, "reconcile --yes --list "+file, "2 timers ended", "1 webhook set again"); strings.Contains(out,
		"doubtful") {
		t.Error(out)
	}
	if out := s.Says(0, "reconcile --yes", "0 timers ended"); strings.Contains(out, "webhook") {
		t.Errorf("set again twice:\n%s", out)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Count(string(text), "\n") != 1 || !strings.Contains(string(text), `"key":"`+other+`"`) {
		t.Errorf("the other keys:\n%s", text)
	}

	p = s.Start("TIMERD_RETRY=*=1h")
	s.Says(0, "resume *")
	all := s.Events(c, 3)
	if e := all[2]; e.Key.String() != hook || e.Attempt != 2 || e.Origin != all[0].ID && e.Origin != all[1].ID {
		t.Errorf("the retry is %+v", e)
	}
	s.Says(0, "reconcile --dry-run --refire "+file, "1 event to fire again")
	s.Says(0, "reconcile --yes --refire "+file, "1 event fired again")
	all = s.Events(c, 4)
	if e := all[3]; e.Key.String() != other || e.ID == all[0].ID || e.ID == all[1].ID {
		t.Errorf("fired again: %+v", e)
	}
	s.Says(0, "reconcile --yes --refire "+file, "0 events fired again", "1 fired again before")
	p.Stop()
}

// Without the right to read the log of deliveries, all timers that have fired are ended nevertheless, and the exit code
// is 1.
func TestReconcileWithoutTheLogOfDeliveries(t *testing.T) {
	t.Parallel()
	const n = 3
	s := system.New(t)
	s.ReplaceNATS(func(o *server.Options) {
		o.Users = []*server.User{{Username: "admin", Password: "a"}, {Username: "operator", Password: "o",
			Permissions: &server.Permissions{Publish: &server.SubjectPermission{
				Deny: []string{"$JS.API.*.*.TIMERS_DELIVERY", "$JS.API.*.*.TIMERS_DELIVERY.>"}}}}}
		o.NoAuthUser = "admin"
	})
	p := s.Start()
	c := s.Collect()
	s.Says(0, "hold *")
	for i := range n {
		s.Do("FCALL", "timer_set", 1, fmt.Sprintf("shop:a:t:%d", i), "p", "PX", 20)
	}
	s.Holds("*", n)
	backup := s.BackUp()
	p.AwaitReady(true)
	s.Says(0, "resume *")
	s.Events(c, n)
	p.Stop()

	s.PutBack(backup)
	s.Env["TIMERD_NATS_URL"] = "nats://operator:o@" + s.NATS.Addr()
	file := filepath.Join(t.TempDir(), "fired.jsonl")
	s.Says(1, "reconcile --yes --list "+file, fmt.Sprintf("%d timers ended", n),
		"no retries of webhooks were looked for, and no list was written")
	if _, err := os.Stat(file); err == nil {
		t.Error("a list was written")
	}
	s.Says(1, "reconcile --yes", "0 timers ended")
}
