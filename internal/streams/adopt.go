package streams

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
)

const (
	// inspectTime is the time that an installation's timerds have to answer Inspect.
	inspectTime = time.Second
	// logTime bounds NATS's answers about the log of deliveries. NATS never answers a user without the right to read
	// the log, and timerds work without that right.
	logTime = 2 * time.Second
)

// Ownership has the installations that Redis and the streams belong to.
type Ownership struct {
	Redis  string  // "" if Redis has no identity
	Owners []Owner // of the existing streams, the stream of deliveries included
	// Unknown is the reason why the stream of deliveries, or its owner, is unknown; nil if it is known.
	Unknown error
	// Living are the timerds that answered, by installation.
	Living map[string][]Answer
}

// Inspect returns the installations that Redis and the streams belong to. It changes nothing, but for a probe in Redis.
func Inspect(ctx context.Context, rdb redis.UniversalClient, js jetstream.JetStream,
	streams Config) (Ownership, error) {
	return inspect(ctx, site{rdb, js, streams.Names}, streams, inspectTime)
}

func inspect(ctx context.Context, s site, streams Config, patience time.Duration) (Ownership, error) {
	id, err := s.read(ctx)
	if err != nil {
		return Ownership{}, err
	}
	owners, err := ownersOf(ctx, s.js, streams.configs()...)
	if err != nil {
		return Ownership{}, err
	}
	soon, cancel := context.WithTimeout(ctx, logTime)
	defer cancel()
	ofLog, unknown := ownersOf(soon, s.js, streams.delivery())
	owners = append(owners, ofLog...)
	state := Ownership{Redis: id, Owners: owners, Unknown: unknown, Living: map[string][]Answer{}}
	all := map[string]bool{id: true}
	for _, o := range owners {
		all[o.Installation] = true
	}
	delete(all, "")
	var mu sync.Mutex
	var wg sync.WaitGroup
	for one := range all {
		wg.Go(func() {
			found, failed := s.ask(ctx, one, "", patience, func(Answer) bool { return false })
			mu.Lock()
			defer mu.Unlock()
			if failed != nil {
				err = failed
			}
			state.Living[one] = found
		})
	}
	wg.Wait()
	return state, err
}

// Adopted is the result of Adopt.
type Adopted struct {
	ID   string  // the installation's; "" if nothing was done
	Were []Owner // the earlier owners of the changed streams
	// Unknown is the reason why the stream of deliveries was left as it is; nil if it was not.
	Unknown error
}

// Adopt gives the streams, the stream of deliveries too, to the installation of rdb's Redis. If Redis has no identity,
// it gets the streams' identity, or a new one. While a timerd of another installation that owns one of these streams
// answers, Adopt changes nothing and returns an error. If it fails later, it returns the changes made before.
func Adopt(ctx context.Context, rdb redis.UniversalClient, js jetstream.JetStream, streams Config) (Adopted, error) {
	s := site{rdb, js, streams.Names}
	state, err := inspect(ctx, s, streams, askTime)
	if err != nil {
		return Adopted{}, err
	}
	for _, o := range state.Owners {
		for _, a := range state.Living[o.Installation] {
			if o.Installation != state.Redis && (state.Redis != "" || a.Redis != sameRedis) {
				return Adopted{}, fmt.Errorf(
					"stream %s belongs to installation %.100q, whose timerd %.100q is running: stop that timerd "+
						"first, or leave it its streams",
					o.Stream, o.Installation, a.Instance)
			}
		}
	}
	id := state.Redis
	if id == "" {
		if id = firstOwner(state.Owners); id == "" {
			id = newID()
		}
		if id, err = s.put(ctx, id); err != nil {
			return Adopted{}, err
		}
	}
	done := Adopted{ID: id, Unknown: state.Unknown}
	for _, o := range state.Owners {
		if o.Installation == id {
			continue
		}
		if err := SetOwner(ctx, js, Owner{Stream: o.Stream, Installation: id}); err != nil {
			return done, err
		}
		done.Were = append(done.Were, o)
	}
	return done, nil
}
