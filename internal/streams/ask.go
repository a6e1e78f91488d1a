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
	// askAgain is the interval of repeated questions: a timerd reconnecting to NATS misses some.
	askAgain = 500 * time.Millisecond
	// probeTTL is the lifetime of a question's probe in Redis, longer than any question takes.
	probeTTL = 10 * time.Second
	// maxAnswers limits the unread answers.
	maxAnswers = 64
)

// An answer's statement about the Redis of the answering timerd.
const (
	sameRedis    = "same"    // it has the asking timerd's probe
	anotherRedis = "another" // it does not have it
	unknownRedis = "unknown" // it does not answer
)

// Answer is the answer of a living timerd of an installation.
type Answer struct {
	Instance string `json:"instance"`
	Redis    string `json:"redis"`
	// Joining means that the timerd is starting, and its Redis may not have the identity yet.
	Joining bool `json:"joining,omitempty"`
}

// Elsewhere reports whether the timerd is known to serve another Redis than the asking timerd.
func (a Answer) Elsewhere() bool { return a.Redis == anotherRedis }

// isHere reports whether the answering timerd serves the same Redis as the asking timerd, and is running. Then that
// Redis is the one of the installation.
func (a Answer) isHere() bool { return a.Redis == sameRedis && !a.Joining }

// answer answers questions for an installation, until the subscription or its connection ends. Without the right to
// subscribe a timerd does not answer; the connection's error handler reports that.
func (m *Member) answer(ctx context.Context, id string) (*nats.Subscription, error) {
	s := m.site
	return s.js.Conn().Subscribe(s.names.InstallationSubject(id), func(question *nats.Msg) {
		a := Answer{Instance: m.instance, Redis: unknownRedis, Joining: m.isJoining()}
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		// A write, because a replica may not have the probe yet.
		if here, err := s.rdb.SetXX(ctx, keys.InstallationProbe(probeName(question.Data)), "",
			probeTTL).Result(); err == nil {
			a.Redis = anotherRedis
			if here {
				a.Redis = sameRedis
			}
		}
		if text, err := json.Marshal(a); err == nil {
			_ = question.Respond(text) // the asking timerd repeats its question
		}
	})
}

// probeName returns the probe's name in a question, cut so that it fits into a probe's key.
func probeName(question []byte) string {
	const most = 64
	return keys.EncodeToken(string(question[:min(len(question), most)]))
}

// ask asks the timerds of an installation to answer, except the one with the given instance id, and returns the last
// answer of each, in the order of their ids. It returns when the time is over, or at once after an answer for which
// isEnough is true. If the caller's context ends first, it returns an error.
func (s site) ask(caller context.Context, id, instance string, within time.Duration,
	isEnough func(Answer) bool) ([]Answer, error) {
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
	// a failure is retried
	put := func() { _ = nc.PublishRequest(s.names.InstallationSubject(id), inbox, []byte(probe)) }
	for put(); ; {
		select {
		case <-ctx.Done():
			return sorted(said), context.Cause(caller)
		case <-again.C:
			put()
		case reply := <-replies:
			var a Answer
			if json.Unmarshal(reply.Data, &a) != nil || a.Instance == instance {
				continue // NATS reports no responder, or a stranger answers
			}
			said[a.Instance] = a
			if isEnough(a) {
				return sorted(said), nil
			}
		}
	}
}

// sorted returns answers in the order of the instances.
func sorted(said map[string]Answer) []Answer {
	return slices.SortedFunc(maps.Values(said), func(a, b Answer) int {
		return strings.Compare(a.Instance, b.Instance)
	})
}
