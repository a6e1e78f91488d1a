package faults_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/status"
	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/test/system"
)

// A failing merchant is reported until single calls succeed again.
func TestOutagesOfHosts(t *testing.T) {
	t.Parallel()
	x := newScene(t)
	var broken atomic.Bool
	merchant := system.NewMerchant(t, func(w http.ResponseWriter, _ *http.Request) {
		if broken.Load() {
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	deliver := x.Deliverer(system.Webhooks(t, "pay:order:callback "+merchant.URL))
	x.play(outage{
		name: "a webhook's host fails", level: diag.Warn, check: diag.CheckHosts,
		text: `127\.0\.0\.1:\d+: not called by timerd deliver, because calls fail, since .*; deliveries of pay:order:callback were put off \d+ times?, `,
		bring: func(*scene) {
			broken.Store(true)
			x.fire("pay:order:callback", 40)
		},
		before: func(*scene) { broken.Store(false) },
		fix:    `timerd deliveries --failed --since 10m`,
	})
	testenv.Eventually(t, system.Patience, func() bool { _, total := merchant.Seen(); return total >= 40 },
		"what waited to be delivered")
	deliver.Stop()
	x.p.Stop()
}

// A timerd deliver that is away, or has another file than the others, is reported, and no waiting event is lost.
func TestOutagesOfDeliver(t *testing.T) {
	t.Parallel()
	x := newScene(t)
	merchant := system.NewMerchant(t, func(http.ResponseWriter, *http.Request) {})
	file := system.Webhooks(t, "pay:order:callback "+merchant.URL)
	deliver := x.Deliverer(file)
	var another string
	var outdated *system.Daemon

	// A file that grows changes the consumers, and nobody has to be told.
	system.WriteWebhooks(t, file, "pay:order:callback "+merchant.URL, "pay:refund "+merchant.URL)
	deliver.Signal(syscall.SIGHUP)
	x.fire("pay:refund:callback", 1)
	testenv.Eventually(t, system.Patience, func() bool { _, total := merchant.Seen(); return total == 1 },
		"a delivery by the file that has grown")
	x.play(outage{
		name: "timerd deliver is away", level: diag.Warn, check: diag.CheckWebhooks,
		text: `timerd-deliver: \d+ events of pay:order:callback, pay:refund wait, the oldest for .*, and no timerd deliver asks for them`,
		bring: func(*scene) {
			deliver.Stop()
			x.fire("pay:order:callback", 3)
		},
		end: func(*scene) { deliver = x.Deliverer(file) },
	}, outage{
		name: "timerd deliver with another file", level: diag.Warn, check: diag.CheckWebhooks,
		text: `group deliver of timerd deliver: no events are taken by .*, as the group uses another file, with SHA-256 [0-9a-f]{12} \(changed at .*, set by `,
		bring: func(*scene) {
			another = system.Webhooks(t, "pay:order "+merchant.URL)
			hourAgo := time.Now().Add(-time.Hour)
			if err := os.Chtimes(another, hourAgo, hourAgo); err != nil {
				t.Fatal(err)
			}
			outdated = x.LaunchCommand([]string{"deliver", "--config", another}, "WEBHOOK_SECRET="+system.WebhookSecret)
		},
		end: func(*scene) { // the fix, in Go
			text, err := os.ReadFile(file)
			if err == nil {
				err = os.WriteFile(another, text, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			outdated.Signal(syscall.SIGHUP)
		},
	})
	outdated.Stop()
	testenv.Eventually(t, system.Patience, func() bool { _, total := merchant.Seen(); return total >= 4 },
		"what waited to be delivered")
	deliver.Stop()
	x.p.Stop()
}

// A consumer with waiting events and without a reader is reported, whoever created it, and so is one whose handler only
// fails.
func TestOutagesOfPrograms(t *testing.T) {
	t.Parallel()
	x := newScene(t)
	reader, err := x.JS.CreateConsumer(t.Context(), "TIMERS", jetstream.ConsumerConfig{
		Durable: "shop-reader", FilterSubject: "timers.fired.shop.>", AckPolicy: jetstream.AckExplicitPolicy,
	})
	if err != nil {
		t.Fatal(err)
	}
	x.play(outage{
		name: "a program that is away", level: diag.Warn, check: diag.CheckConsumers,
		text:  `shop-reader: 5 events of shop wait, the oldest for .*, and no program asks for them; TIMERS drops them 7d after they fired`,
		bring: func(*scene) { x.fire("shop:order:timeout", 5) },
		end: func(*scene) {
			for range 5 {
				m, err := reader.Next(jetstream.FetchMaxWait(system.Patience))
				if err == nil {
					err = m.Ack()
				}
				if err != nil {
					t.Fatal(err)
				}
			}
		},
	}, outage{
		name: "a handler that only fails", level: diag.Warn, check: diag.CheckConsumers,
		text:   `shop-reader: its handler only fails: the last 5 attempts, within .*, and none succeeded`,
		advice: "timerd hold shop",
		bring: func(*scene) { // of another timerd
			now := time.Now()
			past := streams.Consumers{Instance: "another"}
			past.AddSample("shop-reader", streams.ConsumerSample{Minute: streams.Minute(now) - 1})
			for range 5 {
				past.CountFailed(streams.Failure{Key: keys.Key{App: "shop", Module: "order", Type: "timeout", ID: "1"},
					Consumer: "shop-reader", At: now})
			}
			if err := streams.StoreConsumers(t.Context(), x.JS, streams.Config{}, past); err != nil {
				t.Fatal(err)
			}
		},
		end: func(*scene) {
			if err := streams.StoreConsumers(t.Context(), x.JS, streams.Config{},
				streams.Consumers{Instance: "another"}); err != nil {
				t.Fatal(err)
			}
		},
	}, x.farBehind())
	x.p.Stop()
}

// farBehind is a consumer that gets more events than its program handles. Its state of five minutes ago is another
// timerd's report.
func (x *scene) farBehind() outage {
	var handling context.CancelFunc
	ended := make(chan struct{})
	say := func(past streams.Consumers) {
		past.Instance = "another"
		if err := streams.StoreConsumers(x.T.Context(), x.JS, streams.Config{}, past); err != nil {
			x.T.Fatal(err)
		}
	}
	return outage{
		name: "a consumer far behind", level: diag.Warn, check: diag.CheckConsumers,
		text:   `pay-reader: more events come than are handled: \d{3} events of pay wait, the oldest for .*, up from \d+ within 5m; TIMERS drops them 7d after they fired`,
		advice: "run more processes of its program",
		bring: func(*scene) {
			reader, err := x.JS.CreateConsumer(x.T.Context(), "TIMERS", jetstream.ConsumerConfig{
				Durable: "pay-reader", FilterSubject: "timers.fired.pay.>", AckPolicy: jetstream.AckExplicitPolicy,
			})
			if err != nil {
				x.T.Fatal(err)
			}
			var past streams.Consumers
			for ago := range int64(5) {
				past.AddSample("pay-reader", streams.ConsumerSample{Minute: streams.Minute(time.Now()) - 5 + ago,
					Waiting: uint64(10 + 10*ago)})
			}
			say(past)
			x.fire("pay:order:timeout", 150)
			for n := range 600 { // so that the backlog grows however long this takes
				x.Do("FCALL", "timer_set", 1, fmt.Sprint("pay:order:later:", n), "p", "PX", 500*(n+1))
			}
			var ctx context.Context
			ctx, handling = context.WithCancel(x.T.Context())
			go func() {
				defer close(ended)
				for ctx.Err() == nil {
					m, err := reader.Next(jetstream.FetchMaxWait(time.Second))
					<-time.After(time.Second) // its handler takes so long
					if err == nil {
						_ = m.Ack() // else it comes again
					}
				}
			}()
		},
		end: func(*scene) {
			handling()
			<-ended
			x.Says(0, "cancel --all pay --yes")
			if err := x.JS.DeleteConsumer(x.T.Context(), "TIMERS", "pay-reader"); err != nil {
				x.T.Fatal(err)
			}
			say(streams.Consumers{})
		},
	}
}

// A NATS server that has no more room by its own limit is named with its reason. Room is made without a restart.
func TestOutageOfTheStore(t *testing.T) {
	t.Parallel()
	const room = 1 << 20
	x := newSystemScene(t)
	x.NATS = testenv.NATS(t, func(o *server.Options) { o.JetStreamMaxStore = room })
	x.JS = x.NATS.JetStream()
	x.Env["TIMERD_NATS_URL"] = x.NATS.URL()
	x.start()
	c := x.Collect()
	orders, err := x.JS.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders"}})
	if err != nil {
		t.Fatal(err)
	}
	x.play(outage{
		name: "max_file_store is reached", level: diag.Fail, check: status.ReadyJetStream, ready: status.ReadyJetStream,
		text: `the NATS server has no more room for JetStream \(max_file_store\): .*insufficient resources`,
		bring: func(*scene) {
			for err := error(nil); err == nil; {
				_, err = x.JS.Publish(t.Context(), "orders", make([]byte, room/8))
			}
			for err := error(nil); err == nil; {
				_, err = x.JS.Publish(t.Context(), "orders", nil)
			}
			x.fire("shop:order:timeout", 2)
		},
		end: func(*scene) {
			if err := orders.Purge(t.Context()); err != nil {
				t.Fatal(err)
			}
			x.Expect(c, "shop:order:timeout:1=p", "shop:order:timeout:2=p")
		},
	})
	x.p.Stop()
}

// fire sets timers of a namespace that are due at once.
func (x *scene) fire(namespace string, many int) {
	x.T.Helper()
	for range many {
		x.fired++
		x.Do("FCALL", "timer_set", 1, fmt.Sprint(namespace, ":", x.fired), "p", "PX", 20)
	}
}
