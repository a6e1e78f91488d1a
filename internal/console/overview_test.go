package console_test

import (
	"fmt"
	"html"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/history"
	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// beat sends a heartbeat of a timerd.
func (w *world) beat(self schedule.Self) {
	w.t.Helper()
	nodes, err := w.sched.Nodes(w.t.Context())
	if err == nil {
		_, err = nodes[0].Heartbeat(w.t.Context(), self, time.Hour)
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// settled is a timerd whose start asks for nothing.
func settled() schedule.Self {
	return schedule.Self{Instance: "a", Version: "v1", Silence: time.Hour.Milliseconds(),
		Since: time.Now().Add(time.Hour)}
}

// latenesses returns points that end now, one every ten seconds.
func latenesses(late ...time.Duration) (p history.LiveStats) {
	p.At = time.Now()
	for i, one := range late {
		point := history.LivePoint{At: p.At.Add(time.Duration(i-len(late)) * 10 * time.Second), Fired: 1}
		point.Lateness.Add(one)
		p.Lateness.Merge(point.Lateness, 1)
		p.Points = append(p.Points, point)
	}
	return p
}

// The first line says whether timers fire on time, and why not.
func TestOverviewAnswers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	has(t, w.page("/"), `<div class="answer warn"><h1>Nothing fires until a timerd runs</h1>`,
		"Cause: <bdi>no timerd is alive", "runbook.md#unattended")
	w.beat(settled())
	shows := func(want ...string) {
		t.Helper()
		testenv.Eventually(t, time.Minute, func() error {
			text := w.fresh("/")
			for _, part := range want {
				if !strings.Contains(text, part) {
					return fmt.Errorf("no %q in:\n%s", part, text)
				}
			}
			return nil
		}, "the first line")
	}
	w.pulse = func() history.LiveStats { return latenesses(time.Millisecond) }
	shows(`<div class="answer good"><h1>Firing on time</h1>`, "half fired within ")
	w.pulse = func() history.LiveStats { return latenesses(time.Millisecond, 20*time.Second) }
	shows(`<div class="answer warn"><h1>Firing late</h1>`, "One in a hundred of the last minute")
	due := time.Now().Add(-59*time.Minute - 20*time.Second) // overdue a little later
	if err := w.rdb.ZAdd(t.Context(), keys.Single.Due(), redis.Z{Score: float64(due.UnixMilli()),
		Member: "shop:order:timeout:1"}).Err(); err != nil {
		t.Fatal(err)
	}
	shows(`<div class="answer bad"><h1>Not firing since `, "1 timer is overdue. None was settled for 59 min",
		"runbook.md#overdue", `<code><bdi>timerd ls --state owed</bdi></code><button type="button" class="copy"`)
	has(t, w.get("/api/v1/overview").body, `"level": "fail"`, `"text": "Not firing"`,
		`"since": "`+due.UTC().Format("2006-01-02T15:04:05"))
}

// An outage leaves the rest of the chart readable, and p50 has its name.
func TestLatenessIsLogarithmic(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.pulse = func() history.LiveStats { return latenesses(2*time.Millisecond, time.Minute, 30*time.Millisecond) }
	text := w.page("/")
	has(t, text, ">1 ms<", ">100 ms<", ">10 s<", `<span class="of-p50">p50 `, `<span class="of-p99">p99 `,
		"logarithmic")
	line := regexp.MustCompile(`class="p99" points="([^"]*)"`).FindStringSubmatch(text)
	if line == nil {
		t.Fatal(text)
	}
	var heights []float64
	for point := range strings.FieldsSeq(line[1]) {
		var x, y float64
		if _, err := fmt.Sscanf(point, "%f,%f", &x, &y); err != nil {
			t.Fatal(err)
		}
		heights = append(heights, y)
	}
	if len(heights) != 3 || heights[0]-heights[2] < 20 || heights[2]-heights[1] < 20 {
		t.Errorf("heights %v, want the three apart", heights)
	}
}

// Few timers are counted by namespace when the page is asked for; of many the audits' counts have their age. There is
// no row for all namespaces.
func TestNamespaces(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	rate := func(name string) history.LiveNamespace {
		n := history.LiveNamespace{Name: name, FiredPerSecond: 2}
		n.Lateness.Add(time.Millisecond)
		return n
	}
	w.pulse = func() history.LiveStats {
		return history.LiveStats{At: time.Now(), Namespaces: []history.LiveNamespace{rate("shop:order"), rate("*")}}
	}
	w.set("shop:order:timeout:1", "x")
	w.set("shop:order:remind:1", "x")
	w.set("pay:<b>:callback:1", "x")
	text := w.page("/")
	has(t, text, `href="/timers?q=shop%3Aorder"`, `href="/timers?q=pay%3A`, "counted now",
		"Others: not counted, 2.0 fired / s")
	if strings.Contains(text, `href="/timers?q=%2A"`) || strings.Contains(text, "<b>") {
		t.Errorf("a row for all namespaces, or markup:\n%s", text)
	}
	has(t, w.get("/api/v1/overview").body, `"namespace": "shop:order",
      "pending": 2,`, `"live": true`)
	const many = 5001
	pipe := w.rdb.Pipeline()
	for i := range many {
		pipe.ZAdd(t.Context(), keys.Single.Due(), redis.Z{Score: float64(time.Now().Add(time.Hour).UnixMilli()),
			Member: fmt.Sprint("shop:many:t:", i)})
	}
	if _, err := pipe.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
	nodes, err := w.sched.Nodes(t.Context())
	if err == nil {
		err = nodes[0].RecordAudit(t.Context(), schedule.AuditReport{Instance: "a", Reason: "regular",
			At: time.Now().Add(-3 * time.Minute), Timers: []schedule.NamespaceCount{{Namespace: "shop", Pending: 4000},
				{Namespace: keys.Other, Pending: 999}}})
	}
	if err != nil {
		t.Fatal(err)
	}
	has(t, w.fresh("/"), "counted by the audit 3 min", ">4,000<", "Others: 999 pending")
}

// Firings of more than ten seconds ago are not those of now.
func TestFiringNow(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	fire := func(id string, at time.Time) {
		key := keys.Key{App: "shop", Module: "order", Type: "timeout", ID: id}
		w.publish(keys.Fired, event.Event{ID: keys.EventID(key.String(), at.UnixMilli(), 1), Type: event.TypeFired,
			Key: key, Time: at, Due: at, Attempt: 1, MaxAttempts: 4, Trigger: "deadline", Data: []byte("x")})
	}
	fire("old", time.Now().Add(-5*time.Minute))
	has(t, w.page("/"), "Nothing fired in the last 10 seconds. The last one 5 min", "/timers/shop:order:timeout:old")
	fire("new", time.Now().Add(time.Minute)) // the page may come late
	if text := w.fresh("/"); !strings.Contains(text, "/timers/shop:order:timeout:new") ||
		strings.Contains(text, "/timers/shop:order:timeout:old") {
		t.Errorf("want only the new one:\n%s", text)
	}
}

// The consumers' page has each consumer with its last error, and the dead letters by namespace.
func TestConsumers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	has(t, w.page("/consumers"), "No program has a durable consumer", "None is known")
	ctx := t.Context()
	if _, err := w.js.CreateConsumer(ctx, "TIMERS", jetstream.ConsumerConfig{Durable: "mailer",
		FilterSubject: "timers.fired.shop.>", AckPolicy: jetstream.AckExplicitPolicy}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.js.CreateStream(ctx, jetstream.StreamConfig{Name: "TIMERS_STATE",
		Subjects: []string{"timers.state.>"}, MaxMsgsPerSubject: 1}); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := w.js.Publish(ctx, "timers.fired.shop.order.timeout", []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	past := streams.Consumers{Instance: "a"}
	key := keys.Key{App: "shop", Module: "order", Type: "timeout", ID: "1"}
	past.CountFailed(streams.Failure{Key: key, Consumer: "mailer", At: time.Now(), Error: "<i>502</i>"})
	past.CountFailed(streams.Failure{Key: key, At: time.Now(), Error: "x"})
	if err := streams.StoreConsumers(ctx, w.js, streams.Config{}, past); err != nil {
		t.Fatal(err)
	}
	w.letter("pay:order:callback:1", "attempts used up")
	for i := range 4 {
		w.failed("pay:order:callback:"+strconv.Itoa(i+2), fmt.Sprintf("dial 10.0.0.%d:443: <u>refused</u>", i))
	}
	text := w.fresh("/consumers")
	has(t, text, "mailer", `data-is="waiting">3<`, "&lt;i&gt;502&lt;/i&gt;", `/search?q=shop%3Aorder%3Atimeout%3A1`,
		"others, of <bdi>shop:order:timeout", `href="/dead?q=pay%3Aorder%3Acallback">`, "errors of the newest 5",
		`data-is="letters">5<`,
		"dial 10.0.0.3:443: &lt;u&gt;refused", "4 letters", "1 letter,")
	// Errors that differ by their numbers have one row, which leads to all of their letters.
	list := regexp.MustCompile(`href="([^"]*)"><bdi>dial`).FindStringSubmatch(text)
	if list == nil {
		t.Fatal("no link to the letters")
	}
	if n := strings.Count(w.page(html.UnescapeString(list[1])), "dial 10.0.0."); n != 4 {
		t.Errorf("%s lists %d letters, want 4", list[1], n)
	}
	if strings.Contains(text, "<i>") || strings.Contains(text, "<u>") {
		t.Errorf("markup of somebody else:\n%s", text)
	}
	has(t, w.get("/api/v1/consumers").body, `"name": "mailer"`, `"waiting": 3`, `"lastfailure"`, `"letters": 5`,
		`"find": ": \u003cu\u003erefused\u003c/u\u003e"`)
}

// without takes rights of NATS from a console.
func without(denied ...string) func(*world) {
	return func(w *world) {
		w.nats = testenv.NATS(w.t, func(o *server.Options) {
			o.Users = []*server.User{{Username: "less", Password: "x", Permissions: &server.Permissions{
				Publish: &server.SubjectPermission{Deny: denied}}}}
			o.NoAuthUser = "less"
		})
	}
}

// The consumers' page says what cannot be read, and why: the dead letters, or their errors.
func TestLettersThatCannotBeRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t, without("$JS.API.CONSUMER.CREATE.TIMERS_DEAD.>", "$JS.API.STREAM.MSG.GET.TIMERS_DEAD"))
	w.letter("pay:order:callback:1", "attempts used up")
	w.shows("/consumers", `href="/dead?q=pay%3Aorder%3Acallback">`, "its last letter cannot be read",
		"Their errors cannot be read now: <bdi>stream TIMERS_DEAD: ", `data-is="letters">1<`)
	w.shows("/api/v1/consumers", `"letters": 1`, `"noerrors": "stream TIMERS_DEAD: `)

	for i := range 2000 {
		if _, err := w.js.PublishAsync(fmt.Sprintf("timers.dead.a.b.c%d", i), nil); err != nil {
			t.Fatal(err)
		}
	}
	<-w.js.PublishAsyncComplete()
	w.fresh("/consumers")
	w.shows("/consumers", "They cannot be read now: <bdi>stream TIMERS_DEAD has letters of 2001 namespaces")
	w.shows("/api/v1/consumers", `"letters": []`, `"noletters": "stream TIMERS_DEAD has letters of 2001`)

	if err := w.js.DeleteStream(t.Context(), "TIMERS_DEAD"); err != nil {
		t.Fatal(err)
	}
	w.fresh("/consumers")
	w.shows("/consumers", "They cannot be read now: <bdi>there is no stream TIMERS_DEAD: ",
		"No program has a durable consumer")
}

// The consumers' page does not say that there are none if they cannot be read.
func TestConsumersThatCannotBeRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t, without("$JS.API.CONSUMER.LIST.TIMERS"))
	w.until("/consumers", func(text string) bool {
		return !strings.Contains(text, "No program has a durable consumer") &&
			!strings.Contains(text, "None is known") &&
			strings.Count(text, "They cannot be read now: <bdi>consumers of stream TIMERS: ") == 2
	})
	w.shows("/api/v1/consumers", `"noconsumers": "consumers of stream TIMERS: `,
		`"noletters": "consumers of stream TIMERS: `)
}
