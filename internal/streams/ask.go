package streams

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/timerd-io/timerd/keys"
)

const (
	// askAgain is how often a question is repeated: who is connecting to NATS again does not hear each one.
	askAgain = 500 * time.Millisecond
	// probeTTL is how long the probe of a question stays in Redis, more than any question takes.
	probeTTL = 10 * time.Second
	// maxAnswers is how many answers may wait to be read.
	maxAnswers = 64
)

// What an answer says about the Redis of who answers.
const (
	sameRedis    = "same"    // it has the probe of who asks
	anotherRedis = "another" // it has not
	unknownRedis = "unknown" // it does not answer
)

// Answer is what a living timerd of an installation says to who asks for it.
type Answer struct {
	Instance string `json:"instance"`
	Redis    string `json:"redis"`
	// Joining says that it is about to start and its Redis may not have the identity yet.
	Joining bool `json:"joining,omitempty"`
}

// Elsewhere tells whether the timerd serves another Redis than who asked, for all that is known.
func (a Answer) Elsewhere() bool { return a.Redis == anotherRedis }

// isHere tells whether the timerd serves the Redis of who asked, which therefore is the installation's.
func (a Answer) isHere() bool { return a.Redis == sameRedis && !a.Joining }

// answer answers those who ask for an installation, until the subscription or its connection ends. A timerd that may
// not subscribe does not answer; the connection's error handler tells.
func (m *Member) answer(ctx context.Context, id string) (*nats.Subscription, error) {
	s := m.site
	return s.js.Conn().Subscribe(s.names.InstallationSubject(id), func(question *nats.Msg) {
		a := Answer{Instance: m.instance, Redis: unknownRedis, Joining: m.isJoining()}
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		// A write, because a replica may not have the probe yet.
		if here, err := s.rdb.SetXX(ctx, keys.InstallationProbe(probeName(question.Data)), "", probeTTL).Result(); err == nil {
			a.Redis = anotherRedis
			if here {
				a.Redis = sameRedis
			}
		}
		if text, err := json.Marshal(a); err == nil {
			_ = question.Respond(text) // who asks does so again
		}
	})
}

// probeName returns what a question says its probe is called, in any case something that is part of a probe's key.
func probeName(question []byte) string {
	const most = 64
	return keys.EncodeToken(string(question[:min(len(question), most)]))
}

// ask asks the timerds of an installation to answer, except the one with the given instance id, and returns what each
// said last, in the order of their ids. It returns after a time, or as soon as an answer is enough; with an error if
// the context of the caller ends before.
func (s site) ask(caller context.Context, id, instance string, within time.Duration, enough func(Answer) bool) ([]Answer, error) {
	ctx, cancel := context.WithTimeout(caller, within)
	defer cancel()
	probe := newID()
	if err := s.rdb.Set(ctx, keys.InstallationProbe(probe), "", probeTTL).Err(); err != nil {
		return nil, about(err)
	}
	nc := s.js.Conn()
	inbox, replies := nc.NewInbox(), make(chan *nats.Msg, maxAnswers)
	sub, err := nc.ChanSubscribe(inbox, replies)
	if err != nil {
		return nil, fmt.Errorf("ask for installation %.100q: %w", id, err)
	}
	defer func() { _ = sub.Unsubscribe() }() // it only fails if it has ended already

	said := map[string]Answer{}
	again := time.NewTicker(askAgain)
	defer again.Stop()
	put := func() { _ = nc.PublishRequest(s.names.InstallationSubject(id), inbox, []byte(probe)) } // if that fails: again
	for put(); ; {
		select {
		case <-ctx.Done():
			return sorted(said), context.Cause(caller)
		case <-again.C:
			put()
		case reply := <-replies:
			var a Answer
			if json.Unmarshal(reply.Data, &a) != nil || a.Instance == instance {
				continue // NATS says that nobody is there, or somebody else says something
			}
			said[a.Instance] = a
			if enough(a) {
				return sorted(said), nil
			}
		}
	}
}

// sorted returns answers in the order of the instances.
func sorted(said map[string]Answer) []Answer {
	return slices.SortedFunc(maps.Values(said), func(a, b Answer) int { return strings.Compare(a.Instance, b.Instance) })
}
