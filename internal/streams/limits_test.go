package streams_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/internal/testenv"
)

// account returns JetStream in an account with limits, of a server with limits.
func account(t *testing.T, ofServer server.JSLimitOpts, set func(*server.JetStreamAccountLimits)) jetstream.JetStream {
	t.Helper()
	s := testenv.NATS(t, func(o *server.Options) { o.JetStreamLimits = ofServer })
	s.Limit(set)
	return s.JetStream()
}

func unlimited(*server.JetStreamAccountLimits) {}

// Where limits leave room for it, timerd has all its streams, and none of retries, dead letters or state drops
// anything.
func TestEnsureWithinLimits(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	for name, c := range map[string]struct {
		conf       streams.Config
		server     server.JSLimitOpts
		account    func(*server.JetStreamAccountLimits)
		bytes      map[string]int64 // -1 for no limit
		duplicates time.Duration
	}{
		"no limits": {
			conf: streams.Config{MaxBytes: 64 * mib}, account: unlimited, duplicates: 2 * time.Minute,
			bytes: map[string]int64{"TIMERS": 64 * mib, "TIMERS_RETRY": -1, "TIMERS_DEAD": -1, "TIMERS_STATE": -1,
				"TIMERS_DELIVERY": 64 * mib},
		},
		"max_bytes_required": {
			conf: streams.Config{MaxBytes: 64 * mib}, duplicates: 2 * time.Minute,
			account: func(l *server.JetStreamAccountLimits) { l.MaxBytesRequired = true },
			bytes: map[string]int64{
				"TIMERS": 64 * mib, "TIMERS_RETRY": 16 * mib, "TIMERS_DEAD": 16 * mib, "TIMERS_STATE": 4 * mib,
				"TIMERS_DELIVERY": 64 * mib,
			},
		},
		"all of them": {
			conf:   streams.Config{MaxBytes: mib, MinDuplicates: 40 * time.Second},
			server: server.JSLimitOpts{Duplicates: 50 * time.Second, MaxAckPending: 10},
			account: func(l *server.JetStreamAccountLimits) {
				l.MaxBytesRequired, l.StoreMaxStreamBytes, l.MaxStore, l.MaxStreams = true, mib, 5*mib, 5
			},
			bytes: map[string]int64{"TIMERS": mib, "TIMERS_RETRY": mib, "TIMERS_DEAD": mib, "TIMERS_STATE": mib,
				"TIMERS_DELIVERY": mib},
			duplicates: 40 * time.Second,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			js := account(t, c.server, c.account)
			err := errors.Join(streams.Ensure(t.Context(), js, c.conf), streams.EnsureDelivery(t.Context(), js, c.conf),
				look(t, js, c.conf))
			faults, missing, unknown := streams.Check(t.Context(), js, c.conf)
			if err != nil || len(faults)+len(missing) > 0 || unknown != nil {
				t.Fatalf("%v; faults %v, missing %v, %v", err, faults, missing, unknown)
			}
			for name, bytes := range c.bytes {
				is := streamConfig(t, js, name)
				drops := is.Discard == jetstream.DiscardOld && is.MaxBytes > 0
				if is.MaxBytes != bytes || is.Duplicates != c.duplicates ||
					drops != (name == "TIMERS" || name == "TIMERS_DELIVERY") {
					t.Errorf("%s has max bytes %d, discard %s, duplicate window %v", name, is.MaxBytes, is.Discard,
						is.Duplicates)
				}
			}
		})
	}
}

// look counts as timerd does, which makes the stream of the state.
func look(t *testing.T, js jetstream.JetStream, conf streams.Config) error {
	t.Helper()
	none := func() []streams.Counted { return nil }
	return streams.NewLosses(nil, js, conf, none, slog.New(slog.DiscardHandler)).Look(t.Context())
}

// Missing counts of the timers are reported, with the limit that causes it, until the next count.
func TestReadCounting(t *testing.T) {
	t.Parallel()
	const lost = "so nobody would notice if they got lost"
	fewStreams := func(l *server.JetStreamAccountLimits) { l.MaxStreams = 3 }
	for name, c := range map[string]struct {
		account func(*server.JetStreamAccountLimits)
		state   *jetstream.StreamConfig
		want    []string
	}{
		"max_streams": {fewStreams, nil, []string{"there is no such stream", lost, "max_streams: 3",
			"raise max_streams"}},
		"max_bytes_required": {func(l *server.JetStreamAccountLimits) { l.MaxBytesRequired = true }, nil,
			[]string{lost, "set TIMERD_STREAM_MAX_BYTES"}},
		"no reason": {unlimited, nil, []string{lost, "the logs of the timerds"}},
		"no count": {unlimited, &jetstream.StreamConfig{},
			[]string{"it has no count", lost, "the logs of the timerds"}},
		"full": {
			unlimited, &jetstream.StreamConfig{MaxBytes: 1 << 10, Discard: jetstream.DiscardNew},
			[]string{"it has no count", lost, "it is full", "nats stream edit TIMERS_STATE --max-bytes="},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			nats := testenv.NATS(t)
			js := nats.JetStream()
			err := streams.Ensure(t.Context(), js, streams.Config{})
			nats.Limit(c.account)
			if c.state != nil && err == nil {
				c.state.Name, c.state.Subjects = "TIMERS_STATE", []string{"timers.state.>"}
				_, err = js.CreateStream(t.Context(), *c.state)
			}
			if c.state != nil && err == nil {
				_, err = js.Publish(t.Context(), "timers.state.losses", []byte("[]"))
			}
			if err != nil {
				t.Fatal(err)
			}
			found, err := streams.ReadCounting(t.Context(), js, streams.Config{}, new(streams.WriteErrors))
			if err != nil || found == nil || !found.Warning || found.Stream != "TIMERS_STATE" {
				t.Fatalf("%+v, %v", found, err)
			}
			for _, want := range c.want {
				if !strings.Contains(found.Error(), want) {
					t.Errorf("it does not say %q: %v", want, found)
				}
			}
			if c.state == nil || c.state.MaxBytes > 0 {
				return
			}
			if _, err := js.Publish(t.Context(), "timers.state.counts", []byte("{}")); err != nil {
				t.Fatal(err)
			}
			if found, err := streams.ReadCounting(t.Context(), js, streams.Config{},
				new(streams.WriteErrors)); found != nil || err != nil {
				t.Errorf("with a count: %+v, %v", found, err)
			}
		})
	}
}

// A limit without room for timerd is one fault, with the limit and the setting, and no error is JetStream's bare text.
func TestEnsureNamesTheLimit(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	delivery := func(ctx context.Context, js jetstream.JetStream, conf streams.Config) error {
		return errors.Join(streams.Ensure(ctx, js, conf), streams.EnsureDelivery(ctx, js, conf))
	}
	for name, c := range map[string]struct {
		conf    streams.Config
		server  server.JSLimitOpts
		account func(*server.JetStreamAccountLimits)
		ensure  func(context.Context, jetstream.JetStream, streams.Config) error
		want    []string
	}{
		"max_bytes_required": {
			account: func(l *server.JetStreamAccountLimits) { l.MaxBytesRequired = true }, ensure: streams.Ensure,
			want: []string{"max_bytes_required", "set TIMERD_STREAM_MAX_BYTES"},
		},
		"disk_max_stream_bytes": {
			conf: streams.Config{MaxBytes: 9 * mib}, ensure: streams.Ensure,
			account: func(l *server.JetStreamAccountLimits) { l.StoreMaxStreamBytes = 2 * mib },
			want: []string{"no stream of 9437184 bytes (disk_max_stream_bytes: 2097152)",
				"lower TIMERD_STREAM_MAX_BYTES"},
		},
		"max_file": {
			conf: streams.Config{MaxBytes: 9 * mib}, ensure: streams.Ensure,
			account: func(l *server.JetStreamAccountLimits) { l.MaxBytesRequired, l.MaxStore = true, 10*mib },
			want:    []string{"max_file of the account", "set a lower TIMERD_STREAM_MAX_BYTES than 9437184"},
		},
		"max_streams": {
			account: func(l *server.JetStreamAccountLimits) { l.MaxStreams = 1 }, ensure: streams.Ensure,
			want: []string{"no further stream (max_streams: 1)", "raise max_streams",
				"TIMERS, TIMERS_RETRY and TIMERS_DEAD", "TIMERS_STATE"},
		},
		"max_streams for webhooks": {
			account: func(l *server.JetStreamAccountLimits) { l.MaxStreams = 3 }, ensure: delivery,
			want: []string{"no further stream (max_streams: 3)", "timerd deliver needs TIMERS_DELIVERY"},
		},
		"duplicate_window": {
			server: server.JSLimitOpts{Duplicates: 20 * time.Second}, account: unlimited, ensure: streams.Ensure,
			want: []string{"NATS server: timerd needs a duplicate window of 30s", "server limit of 20s",
				`set jetstream { limits { duplicate_window: "2m" } }`},
		},
		"duplicate_window for a long lease": {
			conf: streams.Config{MinDuplicates: time.Minute}, server: server.JSLimitOpts{Duplicates: 50 * time.Second},
			account: unlimited, ensure: streams.Ensure,
			want: []string{"a duplicate window of 1m", "server limit of 50s", "or a shorter TIMERD_LEASE"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := c.ensure(t.Context(), account(t, c.server, c.account), c.conf)
			if err == nil || strings.Contains(err.Error(), "\n") {
				t.Fatalf("want one fault, got: %v", err)
			}
			if fault, ok := errors.AsType[*streams.Fault](err); !ok || fault.Fix() == "" {
				t.Errorf("no fault: %v", err)
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("it does not say %q: %v", want, err)
				}
			}
		})
	}
}

// The room made by a full stream's fix: twice its content, or twice the waiting messages if that is more.
func TestFullnessMakesRoomForTheBacklog(t *testing.T) {
	t.Parallel()
	state := jetstream.StreamState{Msgs: 100, Bytes: 50_000}
	for _, c := range []struct {
		limits  jetstream.StreamConfig
		backlog int64
		want    string
	}{
		{jetstream.StreamConfig{MaxMsgs: 100}, 0, "--max-msgs=200 "},
		{jetstream.StreamConfig{MaxMsgs: 100}, 4_000, "--max-msgs=8100 "},
		{jetstream.StreamConfig{MaxBytes: 50_000}, 10, "--max-bytes=102KB "}, // 100,000 and room for an event
		{jetstream.StreamConfig{MaxBytes: 50_000}, 4_000, "--max-bytes=3960KB "},
	} {
		c.limits.Name, c.limits.Discard = "TIMERS", jetstream.DiscardNew
		err := streams.Fullness(&jetstream.StreamInfo{Config: c.limits, State: state}, 0, c.backlog)
		if fault, ok := errors.AsType[*streams.Fault](err); !ok || !strings.Contains(fault.Fix(), c.want) {
			t.Errorf("with a backlog of %d: %v, want %s", c.backlog, err, c.want)
		}
	}
}
