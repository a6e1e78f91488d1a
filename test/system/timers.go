package system

import (
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
)

// Hour is an hour in ms.
const Hour = int64(time.Hour / time.Millisecond)

// Soon is a TTL in ms: a plain key runs out soon, but not before timerd has adopted it, on a busy machine too.
const Soon = 5000

// Repeats sets a timer that repeats by an interval, and returns when it is due first, in unix ms.
func (s *System) Repeats(key, payload string, every int64, options ...any) int64 {
	s.T.Helper()
	due, ok := s.Do(append([]any{"FCALL", "timer_repeat", 1, key, payload, "EVERY", every}, options...)...).(int64)
	if !ok {
		s.T.Fatalf("timer_repeat of %s set nothing", key)
	}
	return due
}

// Occurred describes events of one key, in the order of the stream: "due in ms after first, number, payload".
func Occurred(all []event.Event, key string, first int64) (said []string) {
	for _, e := range all {
		if e.Key.String() == key {
			said = append(said, fmt.Sprintf("%d %d %s", e.Due.UnixMilli()-first, e.Occurrence, e.Data))
		}
	}
	return said
}

// Next waits until the pending timer of a key is due at a time, by timer_get and by its TTL, and timer_get has a text.
func (s *System) Next(key string, due int64, said string) {
	s.T.Helper()
	testenv.Eventually(s.T, Patience, func() error {
		got := fmt.Sprint(s.Do("FCALL_RO", "timer_get", 1, key))
		if !strings.HasPrefix(got, fmt.Sprintf("[due %d ", due)) || !strings.HasSuffix(got, " "+said+"]") {
			return fmt.Errorf("timer_get says %s; want %d, %s", got, due, said)
		}
		if at := s.Due(key); at != due {
			return fmt.Errorf("the key runs out at %d, want %d", at, due)
		}
		return nil
	}, "what follows of "+key)
}

// Over waits until a key has no timer and repeats no more.
func (s *System) Over(key string) {
	s.T.Helper()
	testenv.Eventually(s.T, Patience, func() error {
		if got := s.Do("FCALL_RO", "timer_get", 1, key); got != nil {
			return fmt.Errorf("timer_get says %v", got)
		}
		if got := s.Do("ZSCORE", keys.Single.Repeat(), key); got != nil {
			return fmt.Errorf("it has the serial %v", got)
		}
		return nil
	}, "the end of "+key)
}

// Load sets n timers, of both kinds, spread over a time from now on. It returns the firings that must come. The plain
// ones are adopted first, however long that takes, and then get their due times.
func (s *System) Load(prefix string, n int, spread time.Duration) []string {
	s.T.Helper()
	key := func(i int) string { return fmt.Sprintf("load:%s:t:%d", prefix, i) }
	pipelined := func(set func(pipe redis.Pipeliner, i int)) {
		if _, err := s.RDB.Pipelined(s.T.Context(), func(pipe redis.Pipeliner) error {
			for i := range n {
				set(pipe, i)
			}
			return nil
		}); err != nil {
			s.T.Fatal(err)
		}
	}
	pipelined(func(pipe redis.Pipeliner, i int) {
		if i%2 == 0 {
			pipe.Do(s.T.Context(), "SET", key(i), i, "PX", time.Hour.Milliseconds())
		}
	})
	s.Adopted(key((n - 1) / 2 * 2)) // in order
	from := 2000 + int64(n)/4       // time to set them
	var want []string
	pipelined(func(pipe redis.Pipeliner, i int) {
		in := from + int64(i)*spread.Milliseconds()/int64(n)
		if i%2 == 0 {
			pipe.Do(s.T.Context(), "PEXPIRE", key(i), in)
		} else {
			pipe.FCall(s.T.Context(), "timer_set", []string{key(i)}, i, "PX", in)
		}
		want = append(want, fmt.Sprintf("%s=%d", key(i), i))
	})
	return want
}

// SetMany sets timers that are due one ms after the other, and returns the firings that must come. If they take over a
// second, every other one is plain, and due after four seconds at least: a plain key that vanishes before timerd has
// seen it fires without its payload.
func (s *System) SetMany(app string, n int, in time.Duration) (want []string) {
	s.T.Helper()
	want, _ = s.SetManyDue(app, n, in)
	return want
}

// SetManyDue is SetMany, and returns when the keys run out, in unix ms.
func (s *System) SetManyDue(app string, n int, in time.Duration) (want []string, due map[string]int64) {
	s.T.Helper()
	ends := map[string]*redis.DurationCmd{}
	for first := 0; first < n; first += 1000 {
		pipe := s.RDB.TxPipeline() // so that none runs out before its expiry is read
		for i := first; i < min(first+1000, n); i++ {
			key := fmt.Sprintf("%s:m:t:%d", app, i)
			offset := time.Duration(i%500) * time.Millisecond
			if in < time.Second || i%2 == 0 {
				pipe.FCall(s.T.Context(), "timer_set", []string{key}, i, "PX", (in + offset).Milliseconds())
			} else {
				pipe.Set(s.T.Context(), key, i, max(in, 4*time.Second)+offset)
			}
			ends[key] = pipe.PExpireTime(s.T.Context(), key)
			want = append(want, fmt.Sprintf("%s=%d", key, i))
		}
		if _, err := pipe.Exec(s.T.Context()); err != nil {
			s.T.Fatal(err)
		}
	}
	due = map[string]int64{}
	for key, end := range ends {
		due[key] = end.Val().Milliseconds()
	}
	return want, due
}
