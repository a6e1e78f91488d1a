package doctor_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/doctor"
	"github.com/timerd-io/timerd/internal/status"
	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
)

func checkNATS(t *testing.T, js jetstream.JetStream, limit int) []diag.Finding {
	t.Helper()
	conf := streams.Config{MinDuplicates: time.Minute}
	state := status.Sources{JetStream: js, Streams: conf}.Gather(t.Context()).Found
	return append(doctor.NewNATS(js, conf, limit).Check(t.Context(), state), state...)
}

func TestNATS(t *testing.T) {
	t.Parallel()
	s := testenv.NATS(t)
	js := s.JetStream()
	findings := checkNATS(t, js, maxPayload)
	wants(t, findings, "nats version", diag.OK, "nats-server "+server.VERSION)
	wants(t, findings, "jetstream", diag.OK, "enabled")
	wants(t, findings, "nats limits", diag.OK, "max_payload is 1048576")
	wants(t, findings, "streams", diag.Warn, "there is no stream TIMERS_RETRY", "start timerd, which makes it")

	if err := streams.Ensure(t.Context(), js, streams.Config{}); err != nil {
		t.Fatal(err)
	}
	findings = checkNATS(t, js, maxPayload)
	wants(t, findings, "streams", diag.OK, "TIMERS, TIMERS_RETRY and TIMERS_DEAD fit; duplicate window at least 1m")
	wants(t, findings, "nats clock", diag.OK, "that of NATS agrees")
	wants(t, checkNATS(t, js, 1<<20), "nats limits", diag.Warn, "fire without data", "max_payload: ")

	if err := js.DeleteStream(t.Context(), "TIMERS"); err != nil {
		t.Fatal(err)
	}
	bad := jetstream.StreamConfig{Name: "TIMERS", Subjects: []string{"timers.fired.>"}, Duplicates: 10 * time.Second,
		Storage: jetstream.MemoryStorage}
	if _, err := js.CreateStream(t.Context(), bad); err != nil {
		t.Fatal(err)
	}
	findings = checkNATS(t, js, maxPayload)
	wants(t, findings, "streams", diag.Fail, "TIMERS: its duplicate window is 10s",
		"nats stream edit TIMERS --dupe-window")
	wants(t, findings, "streams", diag.Warn, "TIMERS: it is kept in memory")
}

// A stream on a single server of a cluster is reported.
func TestNATSClusterWithOneReplica(t *testing.T) {
	t.Parallel()
	js := testenv.NATSCluster(t)[0].JetStream()
	testenv.Eventually(t, time.Minute, func() error { return streams.Ensure(t.Context(), js, streams.Config{}) },
		"JetStream in the cluster")
	wants(t, checkNATS(t, js, maxPayload), "streams", diag.Warn,
		"TIMERS: one server of the NATS cluster three keeps it", "nats stream edit TIMERS --replicas 3")
	for _, name := range []string{"TIMERS", "TIMERS_RETRY", "TIMERS_DEAD"} {
		stream, err := js.Stream(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		config := stream.CachedInfo().Config
		config.Replicas = 3
		if _, err := js.UpdateStream(t.Context(), config); err != nil {
			t.Fatal(err)
		}
	}
	testenv.Eventually(t, time.Minute, func() error { // until they have caught up
		if findings := diag.Findings(checkNATS(t, js, maxPayload)); findings.Has(diag.Fail, "streams") ||
			findings.Has(diag.Warn, "streams") {
			return errors.New(describe(findings))
		}
		return nil
	}, "nothing to be said of the streams")
	if err := streams.EnsureDelivery(t.Context(), js, streams.Config{}); err != nil {
		t.Fatal(err)
	}
	wants(t, checkNATS(t, js, maxPayload), "streams", diag.Warn,
		"TIMERS_DELIVERY: one server of the NATS cluster three keeps it",
		"nats stream edit TIMERS_DELIVERY --replicas 3")
}

func TestNATSThatIsFull(t *testing.T) {
	t.Parallel()
	js := testenv.NATS(t).JetStream()
	if err := streams.Ensure(t.Context(), js, streams.Config{}); err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(t.Context(), "TIMERS_DEAD")
	if err != nil {
		t.Fatal(err)
	}
	config := stream.CachedInfo().Config
	config.MaxMsgs, config.Discard = 1, jetstream.DiscardNew
	if _, err := js.UpdateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	wants(t, checkNATS(t, js, maxPayload), "streams", diag.OK, "fit")
	if _, err := js.Publish(t.Context(), "timers.dead.a.b.c", []byte("letter")); err != nil {
		t.Fatal(err)
	}
	findings := checkNATS(t, js, maxPayload)
	wants(t, findings, "streams", diag.Fail, "TIMERS_DEAD: it is full: 1 messages of at most 1",
		"nats stream edit TIMERS_DEAD --max-msgs=2 --force", "timerd dead replay")
	if len(findings) == 0 || slices.ContainsFunc(findings, func(f diag.Finding) bool {
		return f.Check == "streams" &&
			f.Level == diag.OK
	}) {
		t.Errorf("the streams are also said to fit:\n%s", describe(findings))
	}
}

func TestNATSWithoutJetStream(t *testing.T) {
	t.Parallel()
	off := testenv.NATS(t, func(o *server.Options) { o.JetStream = false })
	wants(t, checkNATS(t, off.JetStream(), maxPayload), diag.CheckNATS, diag.Fail, "without JetStream",
		"jetstream block")

	denied := testenv.NATS(t, func(o *server.Options) {
		o.Users = []*server.User{{Username: "app", Password: "pw", Permissions: &server.Permissions{
			Publish: &server.SubjectPermission{Deny: []string{"$JS.API.>"}},
		}}}
	})
	js := denied.JetStream(nats.UserInfo("app", "pw"), nats.ErrorHandler(
		func(*nats.Conn, *nats.Subscription, error) {}))
	wants(t, checkNATS(t, js, maxPayload), diag.CheckNATS, diag.Fail, "JetStream does not answer", "$JS.API.>")
}

// Nothing is said of webhooks before there is a log of deliveries.
func TestWebhooks(t *testing.T) {
	t.Parallel()
	js := testenv.NATS(t).JetStream()
	ctx := t.Context()
	if err := streams.Ensure(ctx, js, streams.Config{}); err != nil {
		t.Fatal(err)
	}
	if text := describe(checkNATS(t, js, maxPayload)); strings.Contains(text, "webhooks") ||
		strings.Contains(text, "TIMERS_DELIVERY") {
		t.Errorf("where there are none:\n%s", text)
	}
	if err := streams.EnsureDelivery(ctx, js, streams.Config{}); err != nil {
		t.Fatal(err)
	}
	name := keys.DeliverConsumer("pay")
	_, err := js.CreateConsumer(ctx, "TIMERS", jetstream.ConsumerConfig{Durable: name,
		FilterSubject: "timers.fired.pay.>", AckPolicy: jetstream.AckExplicitPolicy})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(ctx, "timers.fired.pay.a.b", []byte("event")); err != nil {
		t.Fatal(err)
	}
	findings := checkNATS(t, js, maxPayload)
	wants(t, findings, "webhooks", diag.OK,
		"TIMERS_DELIVERY fits; consumers of timerd deliver: 1; events that wait: 1, in work: 0")
	wants(t, findings, "stream growth", diag.OK, "TIMERS_DELIVERY has got no messages lately")
	if _, err := js.PauseConsumer(ctx, "TIMERS", name, time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(ctx, "TIMERS_DELIVERY")
	if err != nil {
		t.Fatal(err)
	}
	config := stream.CachedInfo().Config
	config.MaxMsgs, config.Discard, config.Duplicates = 1, jetstream.DiscardNew, time.Second
	if _, err := js.UpdateStream(ctx, config); err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(ctx, "timers.delivery.pay.a.b", []byte("record")); err != nil {
		t.Fatal(err)
	}
	findings = checkNATS(t, js, maxPayload)
	wants(t, findings, "streams", diag.Fail, "TIMERS_DELIVERY: it is full: 1 messages of at most 1",
		"--discard=old --force")
	wants(t, findings, "webhooks", diag.Fail, "TIMERS_DELIVERY: its duplicate window is 1s",
		"nats stream edit TIMERS_DELIVERY --dupe-window")
	wants(t, findings, "webhooks", diag.Warn, "TIMERS_DELIVERY: once it is full it takes no more", "--discard=old")
	wants(t, findings, "webhooks", diag.Warn, "timerd-deliver~pay: paused",
		"nats consumer resume TIMERS timerd-deliver~pay")
}
