package admin_test

import (
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/client/admin"
	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/connect"
	"github.com/timerd-io/timerd/internal/devserver"
	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/internal/testenv/timerdtest"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// patience bounds every wait of the tests.
const patience = time.Minute

// outage is a Redis and a NATS with a timerd, and the published events.
type outage struct {
	*client.Timers
	operator    *admin.Operator
	t           *testing.T
	rdb         *redis.Client
	nats        *testenv.NATSServer
	fired, dead *testenv.Collector
}

// newOutage starts the servers, and no timerd yet.
func newOutage(t *testing.T) *outage {
	t.Helper()
	o := &outage{t: t, rdb: timerdtest.Redis(t), nats: testenv.NATS(t)}
	o.Timers, o.operator = client.New(o.rdb), admin.New(o.rdb)
	js := o.nats.JetStream()
	if err := streams.Ensure(t.Context(), js, streams.Config{}); err != nil {
		t.Fatal(err)
	}
	o.fired, o.dead = testenv.Collect(t, js, "TIMERS"), testenv.Collect(t, js, "TIMERS_DEAD")
	return o
}

func (o *outage) startTimerd() {
	o.t.Helper()
	timerdtest.Run(o.t, o.rdb, o.nats.Conn(connect.NATSOptions()...))
}

// hold holds a namespace and sets n timers of it that are due by then. It returns the due times, by key.
func (o *outage) hold(namespace string, n int) map[string]time.Time {
	o.t.Helper()
	if _, err := o.operator.Hold(o.t.Context(), namespace); err != nil {
		o.t.Fatal(err)
	}
	dues := map[string]time.Time{}
	var last time.Time
	for i := range n {
		key := fmt.Sprintf("%s:m:t:%d", namespace, i)
		due, err := o.Set(o.t.Context(), key, nil, client.After(time.Duration(20+i)*time.Millisecond))
		if err != nil {
			o.t.Fatal(err)
		}
		dues[key], last = due, due
	}
	timerdtest.AwaitDue(o.t, o.rdb, last)
	return dues
}

// held waits until the holds are as wanted: namespaces and how many timers each holds, such as shop=3.
func (o *outage) held(want ...string) (list []admin.Hold) {
	o.t.Helper()
	testenv.Eventually(o.t, patience, func() error {
		var err error
		if list, err = o.operator.Holds(o.t.Context()); err != nil {
			return err
		}
		var got []string
		for _, h := range list {
			got = append(got, fmt.Sprintf("%s=%d", h.Namespace, h.Held))
		}
		if !slices.Equal(got, want) {
			return fmt.Errorf("held: %q, want %q", got, want)
		}
		return nil
	}, "the holds")
	return list
}

// events waits for n events and returns them in the order of their times.
func events(c *testenv.Collector, t *testing.T, n int) (all []event.Event) {
	t.Helper()
	for _, m := range c.Wait(n, patience) {
		e, err := event.Parse(m.Data)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, e)
	}
	slices.SortStableFunc(all, func(a, b event.Event) int { return a.Time.Compare(b.Time) })
	return all
}

// A namespace is held, listed, held again, and resumed. Others fire; held timers can be cancelled.
func TestHoldUntilResumed(t *testing.T) {
	t.Parallel()
	o := newOutage(t)
	o.startTimerd()
	ctx := t.Context()
	before := timerdtest.Now(t, o.rdb).Truncate(time.Millisecond)
	first, err := o.operator.Hold(ctx, "shop", admin.Reason("provider is down"), admin.For(time.Hour))
	if err != nil || first.Already || first.Since.Before(before) || !first.Until.Equal(first.Since.Add(time.Hour)) ||
		len(first.Unreplicated) != 1 {
		t.Fatalf("Hold = %+v, %v, want it since %v for an hour, on one server without replicas", first, err, before)
	}
	dues := o.hold("shop", 3)
	if _, err := o.Set(ctx, "other:m:t:1", nil, client.After(20*time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	events(o.fired, t, 1)
	// The second call has neither a reason nor an end.
	if h := o.held("shop=3")[0]; !h.Since.Equal(first.Since) || !h.Until.IsZero() || h.Reason != "" ||
		!strings.Contains(h.By, "@") ||
		h.Resume != (admin.Resume{}) || h.Resume.String() != "" || !h.ResumedSince.IsZero() || h.ResumedBy != "" {
		t.Errorf("Holds: %+v", h)
	}
	again, err := o.operator.Hold(ctx, "shop:*", admin.Reason("still down"), admin.HoldOption{})
	if err != nil || !again.Already || !again.Since.Equal(first.Since) || !again.Until.IsZero() {
		t.Errorf("Hold again = %+v, %v, want it since %v without an end", again, err, first.Since)
	}
	if h := o.held("shop=3")[0]; h.Reason != "still down" {
		t.Errorf("the reason is %q, want that given last", h.Reason)
	}
	if timer, found, err := o.Get(ctx, "shop:m:t:1"); err != nil || !found || timer.State != client.Held {
		t.Errorf("Get = %+v, %v, %v, want it held", timer, found, err)
	}
	if outcome, err := o.Cancel(ctx, "shop:m:t:1"); err != nil || outcome != client.Cancelled {
		t.Errorf("Cancel = %s, %v", outcome, err)
	}
	if err := o.operator.Resume(ctx, "shop:m", admin.ResumeNow()); !errors.Is(err, admin.ErrNotHeld) {
		t.Errorf("Resume of a namespace within the one that is held: %v, want ErrNotHeld", err)
	}
	if err := o.operator.Resume(ctx, "shop", admin.ResumeNow()); err != nil {
		t.Fatal(err)
	}
	for _, e := range events(o.fired, t, 3)[1:] {
		if due := dues[e.Key.String()]; !e.Due.Equal(due) || e.Key.ID == "1" {
			t.Errorf("%s fired with the due time %v, want %v", e.Key, e.Due, due)
		}
	}
	o.held()
	if err := o.operator.Resume(ctx, "shop", admin.ResumeNow()); !errors.Is(err, admin.ErrNotHeld) {
		t.Errorf("Resume again: %v, want ErrNotHeld", err)
	}
}

// A hold for a time ends by itself.
func TestHoldForATime(t *testing.T) {
	t.Parallel()
	o := newOutage(t)
	o.startTimerd()
	due, err := o.Set(t.Context(), "shop:m:t:1", nil, client.After(1500*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	held, err := o.operator.Hold(t.Context(), "*", admin.For(4*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	if e := events(o.fired, t, 1)[0]; !e.Due.Equal(due) || e.Time.Before(held.Until) {
		t.Errorf("fired at %v, due %v, want it after %v, due %v", e.Time, e.Due, held.Until, due)
	}
	o.held()
}

// A partition that does not get the hold is named, and the hold stands.
func TestUnconfirmedHold(t *testing.T) {
	t.Parallel()
	rdb := timerdtest.Redis(t)
	// It may write the list, but cannot see the partitions with the copies that claims read.
	if err := rdb.Do(t.Context(), "ACL", "SETUSER", "half", "on", "nopass", "+@all", "-exists", "~*",
		"&*").Err(); err != nil {
		t.Fatal(err)
	}
	options := *rdb.Options()
	options.Username, options.Password = "half", "any"
	half := redis.NewClient(&options)
	t.Cleanup(func() { _ = half.Close() })
	held, err := admin.New(half).Hold(t.Context(), "shop", admin.Reason("r"))
	if !errors.Is(err, admin.ErrUnconfirmed) || !strings.Contains(err.Error(), "which is moving") ||
		held.Since.IsZero() {
		t.Errorf("Hold = %+v, %v, want ErrUnconfirmed that names the missing server", held, err)
	}
	if list, err := admin.New(rdb).Holds(t.Context()); err != nil || len(list) != 1 ||
		!list[0].Since.Equal(held.Since) {
		t.Errorf("Holds = %+v, %v, want the hold", list, err)
	}
}

// What cannot be asked for is refused, and changes nothing.
func TestRefusedHolds(t *testing.T) {
	t.Parallel()
	rdb := timerdtest.Redis(t)
	operator := admin.New(rdb)
	if _, err := operator.Hold(t.Context(), "shop"); err != nil {
		t.Fatal(err)
	}
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"one": rdb.Options().Addr}})
	sentinel := redis.NewFailoverClusterClient(&redis.FailoverOptions{MasterName: "m",
		SentinelAddrs: []string{"127.0.0.1:1"}})
	t.Cleanup(func() { _ = errors.Join(ring.Close(), sentinel.Close()) })
	hold := func(operator *admin.Operator, namespace string, opts ...admin.HoldOption) error {
		_, err := operator.Hold(t.Context(), namespace, opts...)
		return err
	}
	resume := func(namespace string, how admin.Resume) error { return operator.Resume(t.Context(), namespace, how) }
	list := func(rdb redis.UniversalClient) error {
		_, err := admin.New(rdb).Holds(t.Context())
		return err
	}
	for _, refused := range []struct {
		err  error
		says string
	}{
		{hold(operator, ""), "part 1 is empty"},
		{hold(operator, "shop:order:timeout:42"), "at most three parts"},
		{hold(operator, "pay", admin.For(999*time.Millisecond)), "For(999ms)"},
		{hold(operator, "pay", admin.For(-time.Hour)), "For(-1h0m0s)"},
		{hold(operator, "pay", admin.Reason(strings.Repeat("x", 1025))), "1025 bytes"},
		{hold(admin.New(ring), "pay"), "*redis.Ring"},
		{hold(admin.New(sentinel), "pay"), "NewFailoverClient"},
		{list(ring), "*redis.Ring"},
		{resume("", admin.ResumeNow()), "part 1 is empty"},
		{resume("shop", admin.Resume{}), "use ResumeNow"},
		{resume("shop", admin.ResumeRate(0)), "ResumeRate(0)"},
		{resume("shop", admin.ResumeRate(-1)), "ResumeRate(-1)"},
		{resume("shop", admin.ResumeRate(1e6+1)), "to 1000000"},
		{resume("shop", admin.ResumeRate(math.NaN())), "ResumeRate(NaN)"},
		{resume("shop", admin.ResumeRate(math.Inf(1))), "ResumeRate(+Inf)"},
	} {
		if !errors.Is(refused.err, client.ErrInvalid) || !strings.Contains(fmt.Sprint(refused.err), refused.says) {
			t.Errorf("%v, want ErrInvalid that says %q", refused.err, refused.says)
		}
	}
	if list, err := operator.Holds(t.Context()); err != nil || len(list) != 1 || list[0].Resume != (admin.Resume{}) {
		t.Errorf("Holds = %+v, %v, want that of shop as it was", list, err)
	}
	index := schedule.New(rdb, schedule.DefaultMaxPayload)
	holds, err := index.Holds(t.Context())
	for i := 1; i < schedule.MaxHolds && err == nil; i++ {
		err = holds.Put(t.Context(), schedule.Hold{Namespace: keys.Namespace{App: fmt.Sprintf("app%d", i)},
			Since: holds.Now})
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := hold(operator, "pay"); !errors.Is(err, admin.ErrTooManyHolds) {
		t.Errorf("one hold more than there may be: %v, want ErrTooManyHolds", err)
	}
	if err := hold(operator, "shop"); err != nil {
		t.Errorf("one of them again: %v", err)
	}
}

// Holds take the rights of timerd's own user, and no more.
func TestRightsOfHolds(t *testing.T) {
	t.Parallel()
	acl, err := os.ReadFile("../../deploy/users.acl")
	if err != nil {
		t.Fatal(err)
	}
	server := testenv.Redis(t, devserver.ACL(strings.ReplaceAll(string(acl), "resetpass", ">secret")))
	as := func(user string) *admin.Operator {
		return admin.New(server.Client(func(o *redis.Options) { o.Username, o.Password = user, "secret" }))
	}
	operator := as("timerd")
	held, err := operator.Hold(t.Context(), "app1")
	if err != nil || len(held.Unreplicated) != 1 || held.Unreplicated[0] != server.Addr() {
		t.Errorf("Hold = %+v, %v, want it unreplicated on %s", held, err, server.Addr())
	}
	if _, err := as("producer").Hold(t.Context(), "app1"); !redis.IsPermissionError(err) {
		t.Errorf("Hold of a producer: %v, want it refused", err)
	}
	if list, err := operator.Holds(t.Context()); err != nil || len(list) != 1 {
		t.Errorf("Holds = %+v, %v", list, err)
	}
	for _, how := range []admin.Resume{admin.ResumeNow(), admin.ResumeRate(10), admin.ResumeShift(),
		admin.ResumeDead()} {
		if err := operator.Resume(t.Context(), "app1", how); err != nil {
			t.Errorf("Resume, %v: %v", how, err)
		}
		if _, err := operator.Hold(t.Context(), "app1"); err != nil {
			t.Error(err)
		}
	}
}

// In a cluster a hold is on every server, and a resume goes through all of them.
func TestHoldsOnACluster(t *testing.T) {
	t.Parallel()
	rdb := testenv.Cluster(t, 3, false).Client()
	index := schedule.New(rdb, schedule.DefaultMaxPayload)
	if _, err := index.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	timers, operator := client.New(rdb), admin.New(rdb)
	held, err := operator.Hold(t.Context(), "shop")
	if err != nil || len(held.Unreplicated) != 3 {
		t.Fatalf("Hold = %+v, %v, want three servers without replicas", held, err)
	}
	node := redis.NewClient(&redis.Options{Addr: held.Unreplicated[0]})
	t.Cleanup(func() { _ = node.Close() })
	one := admin.New(node) // of three
	_, holdErr := one.Hold(t.Context(), "pay")
	_, listErr := one.Holds(t.Context())
	for _, err := range []error{holdErr, listErr, one.Resume(t.Context(), "shop", admin.ResumeNow())} {
		if !errors.Is(err, client.ErrInvalid) || !strings.Contains(err.Error(), "*redis.ClusterClient") {
			t.Errorf("a node taken for a single server: %v, want ErrInvalid that says what to use", err)
		}
	}
	const n = 30
	var settings []client.Setting
	for i := range n {
		settings = append(settings, client.Setting{Key: fmt.Sprintf("shop:m:t:%d", i),
			When: client.After(20 * time.Millisecond)})
	}
	dues, err := timers.SetMany(t.Context(), settings)
	if err != nil {
		t.Fatal(err)
	}
	nodes, err := index.Nodes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, patience, func() error { // claims by a schedule that has read no list
		for i, s := range settings {
			for _, node := range nodes {
				c := node.Claim(t.Context(), []schedule.ClaimRequest{{Partition: index.Partition(s.Key)}},
					time.Minute)[0]
				if len(c.Firings) > 0 {
					t.Fatalf("claimed %+v", c.Firings)
				}
				if c.Err == nil && !c.At.After(dues[i].Due) {
					return fmt.Errorf("%s was not due when it was looked at", s.Key)
				}
			}
		}
		return nil
	}, "a look at all timers")
	if list, err := operator.Holds(t.Context()); err != nil || len(list) != 1 || list[0].Held != n {
		t.Fatalf("Holds = %+v, %v, want %d timers of shop", list, err, n)
	}
	if err := operator.Resume(t.Context(), "shop", admin.ResumeShift()); err != nil {
		t.Fatal(err)
	}
	for i, s := range settings {
		timer, found, err := timers.Get(t.Context(), s.Key)
		if err != nil || !found || !timer.Due.After(dues[i].Due) {
			t.Errorf("%s after the resume: %+v, %v, %v, want it later than %v", s.Key, timer, found, err, dues[i].Due)
		}
	}
	if list, err := operator.Holds(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("Holds = %+v, %v, want none", list, err)
	}
}
