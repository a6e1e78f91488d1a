package streams_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
)

// diesAt ends a timerd at its next count: before Redis keeps that, or right afterwards.
type diesAt struct {
	after bool
	die   func()
}

func (diesAt) DialHook(next redis.DialHook) redis.DialHook { return next }

func (diesAt) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (d diesAt) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() != "set" {
			return next(ctx, cmd)
		}
		if d.after {
			_ = next(ctx, cmd) // it dies of something else
		}
		d.die()
		return errors.New("the timerd has died")
	}
}

// A loss survives the death of the timerd that notices it, and is not reported twice by another one.
func TestLossesSurviveTheirReporter(t *testing.T) {
	t.Parallel()
	for name, after := range map[string]bool{"before the count": false, "after the count": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, js := testenv.Redis(t), testenv.NATS(t).JetStream()
			if err := streams.Ensure(t.Context(), js, streams.Config{}); err != nil {
				t.Fatal(err)
			}
			counted := func() []streams.Counted {
				return []streams.Counted{{Key: keys.Single.Counted(), Timers: 7}}
			}
			var log testenv.Output
			timerd := func(rdb redis.UniversalClient, js jetstream.JetStream) *streams.Losses {
				return streams.NewLosses(rdb, js, streams.Config{}, counted, log.Logger())
			}
			if err := timerd(server.Client(), js).Look(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := server.Client().FlushDB(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
			ctx, die := context.WithCancel(t.Context())
			dying := redis.NewClient(&redis.Options{Addr: server.Addr()})
			dying.AddHook(diesAt{after, die})
			_ = timerd(dying, js).Look(ctx) // it dies
			if err := dying.Close(); err != nil || ctx.Err() == nil {
				t.Fatalf("it lives; %v", err)
			}
			next := timerd(server.Client(), js)
			for range 2 {
				if err := next.Look(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			told, err := streams.ReadLosses(t.Context(), js, streams.Config{})
			had := func(l streams.Loss) bool { return l.Had == 7 && l.Stream == "" }
			if err != nil || len(told) != 1 || !slices.ContainsFunc(told, had) {
				t.Errorf("told: %+v, %v", told, err)
			}
		})
	}
}

// Timers vanished from the schedule are reported once, by any timerd, and again if others vanish later.
func TestVanishedTimersAreReportedOnce(t *testing.T) {
	t.Parallel()
	rdb, js := testenv.Redis(t).Client(), testenv.NATS(t).JetStream()
	if err := streams.Ensure(t.Context(), js, streams.Config{}); err != nil {
		t.Fatal(err)
	}
	vanished := int64(0)
	counted := func() []streams.Counted {
		return []streams.Counted{{Key: keys.Single.Counted(), Timers: 7, Vanished: vanished}}
	}
	var log testenv.Output
	all := []*streams.Losses{
		streams.NewLosses(rdb, js, streams.Config{}, counted, log.Logger()),
		streams.NewLosses(rdb, js, streams.Config{}, counted, log.Logger()),
	}
	for _, step := range []struct {
		vanished int64
		told     int
	}{{0, 0}, {3, 1}, {3, 0}, {0, 0}, {2, 1}} {
		vanished = step.vanished
		for _, l := range all {
			if err := l.Look(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		told, err := streams.AcknowledgeLosses(t.Context(), js, streams.Config{})
		if err != nil || len(told) != step.told || len(told) > 0 && told[0].Vanished != vanished {
			t.Errorf("%d vanished: told %+v, %v", vanished, told, err)
		}
	}
}
