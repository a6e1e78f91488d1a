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
	// inspectTime is how long the timerds of an installation may take to answer to Inspect.
	inspectTime = time.Second
	// logTime is how long NATS may take to answer about the log of deliveries: it does not answer without a right that timerds can
	// do without.
	logTime = 2 * time.Second
)

// Ownership is which installations Redis and the streams belong to.
type Ownership struct {
	Redis  string  // "" if Redis has no identity
	Owners []Owner // of the streams that there are, that of deliveries too
	// Unknown is why it is not known whose the stream of deliveries is, or whether it is there; nil where that is known.
	Unknown error
	// Living are the timerds that answered, by the installation that they are of.
	Living map[string][]Answer
}

// Inspect tells which installations Redis and the streams belong to. It changes nothing, but for a probe in Redis.
func Inspect(ctx context.Context, rdb redis.UniversalClient, js jetstream.JetStream, streams Config) (Ownership, error) {
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

// Adopted is what Adopt has done.
type Adopted struct {
	ID   string  // the installation's; "" if nothing was done
	Were []Owner // whose the streams were that it changed
	// Unknown is why the stream of deliveries was left as it is, nil if it was not.
	Unknown error
}

// Adopt makes the streams, that of deliveries too, those of the installation that the Redis of rdb belongs to. If Redis has
// no identity it gets that of the streams, or a new one. It changes nothing and returns an error while a timerd of another
// installation answers that a stream belongs to. If it fails later, what it returns is what was done before.
func Adopt(ctx context.Context, rdb redis.UniversalClient, js jetstream.JetStream, streams Config) (Adopted, error) {
	s := site{rdb, js, streams.Names}
	state, err := inspect(ctx, s, streams, askTime)
	if err != nil {
		return Adopted{}, err
	}
	for _, o := range state.Owners {
		for _, a := range state.Living[o.Installation] {
			if o.Installation != state.Redis && (state.Redis != "" || a.Redis != sameRedis) {
				return Adopted{}, fmt.Errorf("stream %s belongs to installation %.100q, of which %.100q is running: stop that timerd first, or leave it its streams",
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
