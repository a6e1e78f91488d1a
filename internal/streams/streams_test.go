package streams_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
)

func streamConfig(t *testing.T, js jetstream.JetStream, name string) jetstream.StreamConfig {
	t.Helper()
	stream, err := js.Stream(t.Context(), name)
	if err != nil {
		t.Fatalf("stream %s: %v", name, err)
	}
	return stream.CachedInfo().Config
}

func TestEnsureStreamsMakesTheStreams(t *testing.T) {
	t.Parallel()
	js := testenv.NATS(t).JetStream()
	if err := streams.Ensure(t.Context(), js, streams.Config{}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []struct {
		name, subject string
		retention     jetstream.RetentionPolicy
		age           time.Duration
	}{
		{"TIMERS", "timers.fired.>", jetstream.LimitsPolicy, 7 * 24 * time.Hour},
		{"TIMERS_RETRY", "timers.retry.>", jetstream.WorkQueuePolicy, 0},
		{"TIMERS_DEAD", "timers.dead.>", jetstream.LimitsPolicy, 0},
	} {
		c := streamConfig(t, js, want.name)
		if !slices.Equal(c.Subjects, []string{want.subject}) || c.Retention != want.retention || c.MaxAge != want.age ||
			c.Storage != jetstream.FileStorage || c.Duplicates != 2*time.Minute || c.MaxMsgs != -1 ||
			c.MaxBytes != -1 || c.MaxMsgsPerSubject != -1 {
			t.Errorf("stream %s was made as %+v", want.name, c)
		}
	}
	if err := streams.Ensure(t.Context(), js, streams.Config{}); err != nil {
		t.Errorf("second time: %v", err)
	}
	faults, missing, err := streams.Check(t.Context(), js, streams.Config{})
	if len(faults)+len(missing) > 0 || err != nil {
		t.Errorf("CheckStreams finds faults %v, missing %v, error %v", faults, missing, err)
	}
}

func TestEnsureStreamsWithOtherNames(t *testing.T) {
	t.Parallel()
	js := testenv.NATS(t).JetStream()
	s := streams.Config{Names: keys.Names{Prefix: "acme.timers", Stream: "ACME"}}
	faults, missing, err := streams.Check(t.Context(), js, s)
	if want := []string{"ACME", "ACME_RETRY", "ACME_DEAD"}; len(faults) > 0 || err != nil ||
		!slices.Equal(missing, want) {
		t.Errorf("CheckStreams finds faults %v, missing %v, error %v, want missing %v", faults, missing, err, want)
	}
	for range 2 {
		if err := streams.Ensure(t.Context(), js, s); err != nil {
			t.Fatal(err)
		}
	}
	if got := streamConfig(t, js, "ACME_DEAD").Subjects; !slices.Equal(got, []string{"acme.timers.dead.>"}) {
		t.Errorf("subjects of ACME_DEAD are %v", got)
	}
}

func TestEnsureStreamsWithLimits(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		limits streams.Config
		age    time.Duration
		bytes  int64
	}{
		{streams.Config{}, 7 * 24 * time.Hour, -1},
		{streams.Config{MaxAge: time.Hour, MaxBytes: 5 << 20}, time.Hour, 5 << 20},
		{streams.Config{MaxAge: -1}, 0, -1},
	} {
		js := testenv.NATS(t).JetStream()
		if err := streams.Ensure(t.Context(), js, c.limits); err != nil {
			t.Fatal(err)
		}
		fired := streamConfig(t, js, "TIMERS")
		if fired.MaxAge != c.age || fired.MaxBytes != c.bytes || fired.Discard != jetstream.DiscardOld {
			t.Errorf("with %+v TIMERS was made as %+v", c.limits, fired)
		}
		for _, name := range []string{"TIMERS_RETRY", "TIMERS_DEAD"} {
			if other := streamConfig(t, js, name); other.MaxAge != 0 || other.MaxBytes != -1 {
				t.Errorf("with %+v %s was made as %+v", c.limits, name, other)
			}
		}
		// Existing streams stay as they are, and fit any present settings.
		for _, later := range []streams.Config{{}, {MaxAge: 2 * time.Hour, MaxBytes: 1 << 20}, {MaxAge: -1}} {
			faults, missing, err := streams.Check(t.Context(), js, later)
			if len(faults)+len(missing) > 0 || err != nil {
				t.Errorf("CheckStreams finds faults %v, missing %v, error %v", faults, missing, err)
			}
			if err := streams.Ensure(t.Context(), js, later); err != nil {
				t.Error(err)
			}
		}
		if after := streamConfig(t, js, "TIMERS"); after.MaxAge != c.age || after.MaxBytes != c.bytes {
			t.Errorf("TIMERS became %+v", after)
		}
	}
}

func TestEnsureStreamsWithoutACluster(t *testing.T) {
	t.Parallel()
	js := testenv.NATS(t).JetStream()
	err := streams.Ensure(t.Context(), js, streams.Config{Replicas: 3})
	if fault, ok := errors.AsType[*streams.Fault](err); !ok ||
		!strings.Contains(fault.Error(), "cannot be made with 3 replicas") ||
		!strings.Contains(fault.Remedy, "TIMERD_STREAM_REPLICAS") {
		t.Errorf("got %v", err)
	}
}

func TestEnsureStreamsByManyAtOnce(t *testing.T) {
	t.Parallel()
	s := testenv.NATS(t)
	errs := make([]error, 8)
	var wg sync.WaitGroup
	for i := range errs {
		js := s.JetStream()
		wg.Go(func() { errs[i] = streams.Ensure(t.Context(), js, streams.Config{}) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
}

func TestEnsureStreamsUsesAFittingStreamAsItIs(t *testing.T) {
	t.Parallel()
	js := testenv.NATS(t).JetStream()
	mine := jetstream.StreamConfig{
		Name: "TIMERS", Subjects: []string{"orders.*", "timers.fired.>"}, Storage: jetstream.FileStorage,
		MaxAge: time.Hour, MaxMsgs: 1000, Discard: jetstream.DiscardNew, Duplicates: 30 * time.Second,
		Description: "mine",
	}
	if _, err := js.CreateStream(t.Context(), mine); err != nil {
		t.Fatal(err)
	}
	before := streamConfig(t, js, "TIMERS")
	if err := streams.Ensure(t.Context(), js, streams.Config{}); err != nil {
		t.Fatal(err)
	}
	after := streamConfig(t, js, "TIMERS")
	if after.Description != before.Description || after.MaxMsgs != before.MaxMsgs ||
		!slices.Equal(after.Subjects, before.Subjects) {
		t.Errorf("the stream became %+v", after)
	}
}

// A stream that timerd cannot use is refused with the fix, and stays as it is.
func TestEnsureStreamsRefusesMisfits(t *testing.T) {
	t.Parallel()
	js := testenv.NATS(t).JetStream()
	for _, c := range []struct {
		name   string
		change func(*jetstream.StreamConfig)
		want   string
	}{
		{
			"subjects", func(c *jetstream.StreamConfig) { c.Subjects = []string{"orders.>", "timers.fired.app1.>"} },
			"stream TIMERS: it takes orders.>, timers.fired.app1.>, not timers.fired.>; to fix it: nats stream edit " +
				"TIMERS --subjects 'orders.>,timers.fired.>'",
		},
		{
			"mirror", func(c *jetstream.StreamConfig) {
				c.Subjects, c.Mirror = nil, &jetstream.StreamSource{Name: "OTHER"}
			},
			"stream TIMERS: it mirrors stream OTHER, so nothing can be published to it; to fix it: set TIMERD_STREAM " +
				"to another name; or, once nobody needs this one: nats stream rm TIMERS",
		},
		{
			"work queue", func(c *jetstream.StreamConfig) { c.Retention = jetstream.WorkQueuePolicy },
			"stream TIMERS: its retention is WorkQueue, want Limits; to fix it: set TIMERD_STREAM to another name; " +
				"or, once nobody needs this one: nats stream rm TIMERS",
		},
		{
			"interest", func(c *jetstream.StreamConfig) { c.Retention = jetstream.InterestPolicy },
			"stream TIMERS: its retention is Interest, want Limits; to fix it: nats stream edit TIMERS " +
				"--retention=limits",
		},
		{
			"no acks", func(c *jetstream.StreamConfig) { c.NoAck = true },
			"stream TIMERS: it does not acknowledge messages; to fix it: nats stream edit TIMERS --ack",
		},
		{
			"duplicate window", func(c *jetstream.StreamConfig) { c.Duplicates = 5 * time.Second },
			"stream TIMERS: its duplicate window is 5s, want at least 30s; to fix it: nats stream edit TIMERS " +
				"--dupe-window=2m",
		},
		{
			"small messages", func(c *jetstream.StreamConfig) { c.MaxMsgSize = 1000 },
			"stream TIMERS: it takes messages of up to 1000 bytes, too few for the event of a long key; to fix it: " +
				"nats stream edit TIMERS --max-msg-size=-1",
		},
		{
			"full by subject", func(c *jetstream.StreamConfig) {
				c.Discard, c.DiscardNewPerSubject, c.MaxMsgsPerSubject = jetstream.DiscardNew, true, 10
			},
			"stream TIMERS: it refuses messages subject by subject, so one full subject would hold up the timers of " +
				"all; to fix it: nats stream edit TIMERS --no-discard-per-subject",
		},
		{
			"counter", func(c *jetstream.StreamConfig) { c.AllowMsgCounter, c.AllowDirect = true, true },
			"stream TIMERS: it is a counter, so it takes no events; to fix it: set TIMERD_STREAM to another name; " +
				"or, once nobody needs this one: nats stream rm TIMERS",
		},
		{
			"retry requests with a limit", func(c *jetstream.StreamConfig) {
				c.Name, c.Subjects, c.Retention, c.MaxAge = "TIMERS_RETRY", []string{"timers.retry.>"},
					jetstream.WorkQueuePolicy, time.Hour
			},
			"stream TIMERS_RETRY: its limits drop requests before they are carried out; to fix it: nats stream edit " +
				"TIMERS_RETRY --max-age=0 --max-msgs=-1 --max-bytes=-1 --max-msgs-per-subject=-1",
		},
		{
			"retry requests not in a work queue", func(c *jetstream.StreamConfig) {
				c.Name, c.Subjects = "TIMERS_RETRY",
					[]string{"timers.retry.>"}
			},
			"stream TIMERS_RETRY: its retention is Limits, want WorkQueue; to fix it: set TIMERD_STREAM to another " +
				"name; or, once nobody needs this one: nats stream rm TIMERS_RETRY",
		},
		{
			"another stream on the subjects", func(c *jetstream.StreamConfig) {
				c.Name, c.Subjects = "OTHER", []string{"orders.>", "timers.fired.shop.>"}
			},
			"stream TIMERS: cannot be made for timers.fired.>, because stream OTHER takes orders.>, " +
				"timers.fired.shop.>; to fix it: set TIMERD_SUBJECT_PREFIX to a prefix that no stream takes; or, to " +
				"take them from the other stream: nats stream edit OTHER --subjects 'orders.>' --force",
		},
		{
			"another stream on everything", func(c *jetstream.StreamConfig) {
				c.Name, c.Subjects = "OTHER",
					[]string{"timers.>"}
			},
			"stream TIMERS_DEAD: cannot be made for timers.dead.>, because stream OTHER takes timers.>; to fix it: " +
				"set TIMERD_SUBJECT_PREFIX to a prefix that no stream takes; or remove",
		},
		{
			"one stream for all", func(c *jetstream.StreamConfig) { c.Subjects = []string{"timers.>"} },
			"stream TIMERS_RETRY: cannot be made for timers.retry.>, because stream TIMERS takes timers.>; to fix " +
				"it: set TIMERD_SUBJECT_PREFIX to a prefix that no stream takes; or, to take them from the other " +
				"stream: nats stream edit TIMERS --subjects 'timers.fired.>' --force",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			config := jetstream.StreamConfig{Name: "TIMERS", Subjects: []string{"timers.fired.>"},
				Duplicates: time.Minute}
			c.change(&config)
			// The server may still be removing the files of the stream before.
			testenv.Eventually(t, patience, func() error {
				_, err := js.CreateStream(t.Context(), config)
				return err
			}, "the stream")
			defer deleteStreams(t, js)
			err := streams.Ensure(t.Context(), js, streams.Config{})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("error is\n%v\nwant\n%s", err, c.want)
			}
			var fault *streams.Fault
			if !errors.As(err, &fault) || fault.Remedy == "" {
				t.Errorf("error %v is no StreamFault with a fix", err)
			}
			if strings.Contains(c.want, "cannot be made") {
				return
			}
			faults, _, err := streams.Check(t.Context(), js, streams.Config{})
			if err != nil || !slices.ContainsFunc(faults, func(f *streams.Fault) bool {
				return strings.Contains(f.Error(), c.want)
			}) {
				t.Errorf("CheckStreams finds %v, error %v", faults, err)
			}
		})
	}
}

func deleteStreams(t *testing.T, js jetstream.JetStream) {
	t.Helper()
	names := js.StreamNames(t.Context())
	for name := range names.Name() {
		if err := js.DeleteStream(t.Context(), name); err != nil {
			t.Errorf("deleting stream %s: %v", name, err)
		}
	}
	if err := names.Err(); err != nil {
		t.Error(err)
	}
}

func TestSealedStreamIsRefused(t *testing.T) {
	t.Parallel()
	js := testenv.NATS(t).JetStream()
	config := jetstream.StreamConfig{Name: "TIMERS", Subjects: []string{"timers.fired.>"}, Duplicates: time.Minute}
	if _, err := js.CreateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	config.Sealed = true
	if _, err := js.UpdateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	if err := streams.Ensure(t.Context(), js, streams.Config{}); err == nil ||
		!strings.Contains(err.Error(), "stream TIMERS: it is sealed") {
		t.Errorf("error is %v", err)
	}
}

func TestStreamsThatKeepTooLittleAreWarnedOf(t *testing.T) {
	t.Parallel()
	js := testenv.NATS(t).JetStream()
	for _, config := range []jetstream.StreamConfig{
		{Name: "TIMERS", Subjects: []string{"timers.fired.>"}, Storage: jetstream.MemoryStorage},
		{Name: "TIMERS_DEAD", Subjects: []string{"timers.dead.>"}, MaxMsgs: 100},
	} {
		if _, err := js.CreateStream(t.Context(), config); err != nil {
			t.Fatal(err)
		}
	}
	if err := streams.Ensure(t.Context(), js, streams.Config{}); err != nil {
		t.Errorf("EnsureStreams: %v", err)
	}
	faults, missing, err := streams.Check(t.Context(), js, streams.Config{})
	if len(faults) != 2 || len(missing) > 0 || err != nil || !faults[0].Warning || !faults[1].Warning {
		t.Errorf("CheckStreams finds %v, missing %v, error %v", faults, missing, err)
	}
}

// A stream that somebody made without batches works; the warning has the command that allows them.
func TestStreamsWithoutBatchesAreWarnedOf(t *testing.T) {
	t.Parallel()
	js := testenv.NATS(t).JetStream()
	config := jetstream.StreamConfig{Name: "TIMERS", Subjects: []string{"timers.fired.>"}}
	if _, err := js.CreateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	faults, _, err := streams.Check(t.Context(), js, streams.Config{})
	if err != nil || len(faults) != 1 || !faults[0].Warning ||
		faults[0].Fix() != "nats stream edit TIMERS --allow-batch --force" {
		t.Errorf("%v, %v", faults, err)
	}
	config.AllowAtomicPublish = true
	if _, err := js.UpdateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	if faults, _, err := streams.Check(t.Context(), js, streams.Config{}); err != nil || len(faults) != 0 {
		t.Errorf("where they are allowed: %v, %v", faults, err)
	}
}

func TestTooSmallMaxPayloadIsRefused(t *testing.T) {
	t.Parallel()
	js := testenv.NATS(t, func(o *server.Options) { o.MaxPayload = 4096 }).JetStream()
	err := streams.Ensure(t.Context(), js, streams.Config{})
	if want := "NATS server: max_payload is 4096 bytes, too small for the event of a long key; to fix it: set " +
		"max_payload to 16384 or more"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error is %v, want %s", err, want)
	}
}

func TestEnsureStreamsWithoutJetStream(t *testing.T) {
	t.Parallel()
	js := testenv.NATS(t, func(o *server.Options) { o.JetStream = false }).JetStream()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	err := streams.Ensure(ctx, js, streams.Config{})
	var fault *streams.Fault
	if err == nil || errors.As(err, &fault) {
		t.Errorf("error is %v, want one that is no StreamFault", err)
	}
	if _, _, err := streams.Check(ctx, js, streams.Config{}); err == nil {
		t.Error("CheckStreams finds nothing wrong")
	}
}
