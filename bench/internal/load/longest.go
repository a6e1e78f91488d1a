package load

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/bench/internal/peer"
	"github.com/timerd-io/timerd/bench/internal/result"
	"github.com/timerd-io/timerd/bench/internal/rig"
	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// ValueLongest is the duration of the slowest call of timerd in Redis.
const ValueLongest = "longestMs"

// longest begins the names of Longest's workloads.
const longest = "longest: "

// longestLead is the delay of Longest's timers. The time for setting them comes on top.
const longestLead = 3 * time.Second

// largest returns a payload of the largest size that timerd takes by default.
func largest() string { return strings.Repeat("x", schedule.DefaultMaxPayload) }

// beyondLimit returns a payload that is too large for a retry.
func beyondLimit() string { return strings.Repeat("x", 1<<20) }

// hostile is a deed of a hostile tenant that may hold Redis for long. run returns once timerd has done its work for the
// deed, or leaves timers that fire later.
type hostile struct {
	name string
	run  func(ctx context.Context, b *Bench, x *timerdRun) error
}

// hostiles returns the deeds. n is the number of timers or retries for each kind of small ones.
func hostiles(n int) []hostile {
	hashes := func(count, fields int, name, value string) func(context.Context, *Bench, *timerdRun) error {
		return func(ctx context.Context, b *Bench, x *timerdRun) error {
			return x.setHashes(ctx, b.Grace, count, fields, name, value)
		}
	}
	large := n / 16
	few := n / 50
	return []hostile{
		{fmt.Sprintf("%d hashes of 1,000 fields", few), hashes(few, 1000, "name", "value")},
		{fmt.Sprintf("%d hashes of 1,000 fields, 256 KiB", few), hashes(few, 1000, "name", strings.Repeat("v", 240))},
		{fmt.Sprintf("%d hashes of 13,000 fields", few), hashes(few, 13_000, "name", "value")},
		{"a hash with a field name of 60 MB", hashes(1, 1, strings.Repeat("n", 60_000_000), "value")},
		{fmt.Sprintf("%d hashes of 256 KiB of control characters", few),
			hashes(few, 1, "name", strings.Repeat("\x01", schedule.DefaultMaxPayload-1000))},
		{fmt.Sprintf("%d payloads of 256 KiB whose attempt is an array of arrays, read", few),
			func(ctx context.Context, _ *Bench, x *timerdRun) error {
				return x.readAttempts(ctx, few)
			}},
		{"calls with arguments of 1 MB that are refused", func(ctx context.Context, _ *Bench, x *timerdRun) error {
			return x.callWithLongArguments(ctx)
		}},
		{fmt.Sprintf("%d payloads of 256 KiB due at once", large),
			func(ctx context.Context, _ *Bench, x *timerdRun) error {
				due := time.Now().Add(longestLead)
				return x.setAt(ctx, large, due, func(pipe redis.Pipeliner, key string, due int64) {
					pipe.Do(ctx, "FCALL", "timer_set", 1, key, largest(), "PXAT", due)
				})
			}},
		{fmt.Sprintf("%d plain keys of 256 KiB due at once", large),
			func(ctx context.Context, _ *Bench, x *timerdRun) error {
				due := time.Now().Add(longestLead)
				return x.setAt(ctx, large, due, func(pipe redis.Pipeliner, key string, due int64) {
					pipe.Do(ctx, "SET", key, largest(), "PXAT", due)
				})
			}},
		{fmt.Sprintf("`timerd ls` of %d payloads of 256 KiB", large),
			func(ctx context.Context, b *Bench, x *timerdRun) error {
				return x.list(ctx, b.Timerd, large)
			}},
		{fmt.Sprintf("%d timers due at once", n), func(ctx context.Context, _ *Bench, x *timerdRun) error {
			return x.setAt(ctx, n, time.Now().Add(longestLead), func(pipe redis.Pipeliner, key string, due int64) {
				pipe.Do(ctx, "FCALL", "timer_set", 1, key, "p", "PXAT", due)
			})
		}},
		{fmt.Sprintf("%d retries of 1 MB", few), func(ctx context.Context, _ *Bench, x *timerdRun) error {
			return x.retry(ctx, few, crowdKey, beyondLimit())
		}},
		{fmt.Sprintf("%d retries beside one key's newer timer", n*6/5),
			func(ctx context.Context, _ *Bench, x *timerdRun) error {
				return x.retryBeside(ctx, n*6/5, "p")
			}},
		{"150 retries of 256 KiB beside one key's newer timer, cancelled",
			func(ctx context.Context, _ *Bench, x *timerdRun) error {
				const most = 150
				if err := x.retryBeside(ctx, most, largest()); err != nil {
					return err
				}
				return x.RedisClient.Do(ctx, "FCALL", "timer_cancel", 1, crowdKey(0)).Err()
			}},
		{fmt.Sprintf("%d retries due within a few ms", n*8/5), func(ctx context.Context, _ *Bench, x *timerdRun) error {
			return x.retry(ctx, n*8/5, crowdKey, "p")
		}},
		{fmt.Sprintf("%d retries of one key due within a few ms", n*8/5),
			func(ctx context.Context, _ *Bench, x *timerdRun) error {
				return x.retry(ctx, n*8/5, func(int) string { return crowdKey(0) }, "p")
			}},
	}
}

// Longest measures the longest time for which timerd holds Redis after each deed of a hostile tenant: the slowest
// command of timerd in Redis's slow log.
func (b *Bench) Longest(ctx context.Context, round int, save func(result.Measurement) error) error {
	for _, h := range hostiles(b.Scale.Crowd) {
		m, by, err := b.longest(ctx, h, round)
		if err != nil {
			return fmt.Errorf("%s: %w", h.name, err)
		}
		b.logf("%s: %.1f ms at most, by %s", h.name, m.Values[ValueLongest], by)
		if err := save(m); err != nil {
			return err
		}
	}
	return nil
}

// longest measures one deed. by is the text of the slowest command, shortened.
func (b *Bench) longest(ctx context.Context, h hostile, round int) (m result.Measurement, by string, err error) {
	x, err := b.startTimerd(ctx, &peer.Timerd{Unconsumed: true})
	if err != nil {
		return m, "", err
	}
	defer func() { err = errors.Join(err, x.Close()) }()
	for name, value := range map[string]string{"slowlog-log-slower-than": "100", "slowlog-max-len": "100000"} {
		if err := x.RedisClient.ConfigSet(ctx, name, value).Err(); err != nil {
			return m, "", err
		}
	}
	if err := h.run(ctx, b, x); err != nil {
		return m, "", err
	}
	err = rig.Until(ctx, longestLead+b.Grace, func(ctx context.Context) error {
		pending, firing, err := x.timerd.Counts(ctx)
		if err == nil && pending+firing > 0 {
			err = fmt.Errorf("%d timers are pending and %d firing", pending, firing)
		}
		return err
	})
	if err != nil {
		return m, "", err
	}
	slow, err := x.RedisClient.SlowLogGet(ctx, -1).Result()
	if err != nil {
		return m, "", err
	}
	m = x.measurement(longest+h.name, round)
	m.Values = map[string]float64{ValueLongest: 0}
	for _, entry := range slow {
		if command := strings.ToLower(entry.Args[0]); !slices.Contains([]string{"hset", "set", "pexpireat", "config"},
			command) {
			if took := ms(entry.Duration); took > m.Values[ValueLongest] {
				m.Values[ValueLongest], by = took, fmt.Sprintf("%.100q", entry.Args)
			}
		}
	}
	return m, by, nil
}

// crowdKey returns the key of one of many timers.
func crowdKey(i int) string { return fmt.Sprintf("bench:crowd:hostile:%d", i) }

// setAt sets n timers that are all due at one time.
func (x *timerdRun) setAt(ctx context.Context, n int, due time.Time,
	set func(pipe redis.Pipeliner, key string, due int64)) error {
	const batch = 50
	for i := 0; i < n; i += batch {
		if _, err := x.RedisClient.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for j := i; j < min(i+batch, n); j++ {
				set(pipe, crowdKey(j), due.UnixMilli())
			}
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}

// setHashes sets hash timers, and changes each of them ten times before it fires.
func (x *timerdRun) setHashes(ctx context.Context, grace time.Duration, n, fields int, name, value string) error {
	const changes = 10
	due := time.Now().Add(time.Hour)
	for i := range n {
		var hash []any
		for f := range fields {
			hash = append(hash, fmt.Sprint(name, f), value)
		}
		if err := x.RedisClient.HSet(ctx, crowdKey(i), hash...).Err(); err != nil {
			return err
		}
	}
	all := func(do func(pipe redis.Pipeliner, key string)) error {
		return x.setAt(ctx, n, due, func(pipe redis.Pipeliner, key string, _ int64) { do(pipe, key) })
	}
	if err := all(func(pipe redis.Pipeliner, key string) {
		pipe.Do(ctx, "PEXPIREAT", key,
			due.UnixMilli())
	}); err != nil {
		return err
	}
	if _, err := x.timerd.AwaitAdopted(ctx, int64(n), grace); err != nil {
		return err
	}
	for range changes {
		if err := all(func(pipe redis.Pipeliner, key string) { pipe.HSet(ctx, key, "changed", "v") }); err != nil {
			return err
		}
	}
	due = time.Now().Add(longestLead)
	return all(func(pipe redis.Pipeliner, key string) { pipe.Do(ctx, "PEXPIREAT", key, due.UnixMilli()) })
}

// readAttempts sets n timers whose payloads state an attempt and take long to decode. It reads each timer before the
// timer fires.
func (x *timerdRun) readAttempts(ctx context.Context, n int) error {
	payload := `{"attempt":[` + strings.Repeat("[],", schedule.DefaultMaxPayload/3-10) + `[]]}`
	return x.setAt(ctx, n, time.Now().Add(longestLead), func(pipe redis.Pipeliner, key string, due int64) {
		pipe.Do(ctx, "FCALL", "timer_set", 1, key, payload, "PXAT", due)
		pipe.Do(ctx, "FCALL_RO", "timer_get", 1, key)
	})
}

// callWithLongArguments calls the functions with arguments that exceed every limit.
func (x *timerdRun) callWithLongArguments(ctx context.Context) error {
	digits := strings.Repeat("1", 1<<20)
	for _, call := range [][]any{
		{"timer_set", 1, digits, "p", "PX", 1}, {"timer_set", 1, crowdKey(0), "p", digits, 1},
		{"timer_set", 1, crowdKey(0), "p", "PX", digits},
		{"timer_repeat", 1, crowdKey(0), "p", digits, 1}, {"timer_repeat", 1, crowdKey(0), "p", "EVERY", digits},
		{"timer_cancel", 1, crowdKey(0), "UNTIL", digits}, {"timer_cancel", 1, digits},
	} {
		if err := x.RedisClient.Do(ctx, append([]any{"FCALL"}, call...)...).Err(); err == nil {
			return fmt.Errorf("%v with an argument of 1 MB is not refused", call[0])
		}
	}
	return nil
}

// list sets n timers with the largest payloads, lists them, and cancels them.
func (x *timerdRun) list(ctx context.Context, timerd string, n int) error {
	if err := x.setAt(ctx, n, time.Now().Add(time.Hour), func(pipe redis.Pipeliner, key string, due int64) {
		pipe.Do(ctx, "FCALL", "timer_set", 1, key, largest(), "PXAT", due)
	}); err != nil {
		return err
	}
	out, err := x.ls(ctx, timerd, 0).CombinedOutput()
	if err != nil {
		return fmt.Errorf("timerd ls: %w\n%.1000s", err, out)
	}
	if got := strings.Count(string(out), crowdKey(0)[:len(crowdKey(0))-1]); got < n {
		return fmt.Errorf("timerd ls shows %d of %d timers", got, n)
	}
	return x.setAt(ctx, n, time.Now(), func(pipe redis.Pipeliner, key string, _ int64) {
		pipe.Do(ctx, "FCALL", "timer_cancel", 1, key)
	})
}

// ls returns the output of the command that lists timers; n is the limit, 0 for none.
func (x *timerdRun) ls(ctx context.Context, timerd string, limit int) *exec.Cmd {
	ls := exec.CommandContext(ctx, timerd, "ls", "--limit", strconv.Itoa(limit))
	ls.Env = append(ls.Environ(), "TIMERD_REDIS_URL=redis://"+x.RedisClient.Options().Addr+"/0", "TIMERD_NAMESPACES=*")
	return ls
}

// retryBeside requests retries of a key that has a newer timer, and waits until timerd has set them.
func (x *timerdRun) retryBeside(ctx context.Context, n int, payload string) error {
	due := time.Now().Add(longestLead + time.Duration(n)*time.Millisecond).UnixMilli()
	if err := x.RedisClient.Do(ctx, "FCALL", "timer_set", 1, crowdKey(0), "p", "PXAT", due).Err(); err != nil {
		return err
	}
	return x.retry(ctx, n, func(int) string { return crowdKey(0) }, payload)
}

// retry requests n retries, due at about the same time, and waits until timerd has set them.
func (x *timerdRun) retry(ctx context.Context, n int, key func(i int) string, payload string) error {
	js, err := jetstream.New(x.timerd.NATS)
	if err != nil {
		return err
	}
	began := time.Now()
	due := began.Add(longestLead + time.Duration(n)*time.Millisecond)
	for i := range n {
		k, err := keys.Parse(key(i))
		if err != nil {
			return err
		}
		before := began.Add(-time.Duration(i) * time.Millisecond)
		e := event.Event{
			ID: keys.EventID(k.String(), before.UnixMilli(), 1), Type: event.TypeFired, Key: k, Time: before,
			Due:     before.Truncate(time.Millisecond),
			Attempt: 1, MaxAttempts: peer.Attempts, Trigger: string(schedule.TriggerDeadline), Data: []byte(payload),
		}
		request := nats.NewMsg(k.Subject(client.DefaultPrefix, keys.Retry))
		request.Data = e.AppendJSON(nil)
		request.Header.Set(event.DelayHeader, time.Until(due).Round(time.Millisecond).String())
		if _, err := js.PublishMsgAsync(request); err != nil {
			return err
		}
	}
	select {
	case <-js.PublishAsyncComplete():
	case <-ctx.Done():
		return ctx.Err()
	}
	return rig.Until(ctx, time.Until(due)+time.Minute, func(ctx context.Context) error {
		stream, err := js.Stream(ctx, retryStream)
		if err == nil && stream.CachedInfo().State.Msgs > 0 {
			err = fmt.Errorf("%d retry requests are not carried out yet", stream.CachedInfo().State.Msgs)
		}
		return err
	})
}

// retryStream is the name of timerd's stream of retry requests.
const retryStream = client.DefaultStream + "_RETRY"
