// Package travel moves the virtual clock of timerd dev --virtual from due time to due time, for timerd advance and
// package timerdtest.
package travel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// DefaultWait is the longest wait at one due time until all has come to rest.
const DefaultWait = 10 * time.Second

const (
	firstPause   = 200 * time.Microsecond
	longestPause = 2 * time.Millisecond
	// One wait for keys to be taken in is limited to Clock.Wait / keysShare, or to leastKeysWait if that is longer.
	keysShare     = 5
	leastKeysWait = 200 * time.Millisecond
	// mostNamed limits the names of open timers in an error.
	mostNamed = 10
)

// Open is the error of an advance that has ended because something did not come to rest.
type Open struct {
	At   time.Time // the virtual time reached
	What []string  // the open things, each for people to read
	Wait time.Duration
}

func (o *Open) Error() string {
	return fmt.Sprintf("at %s this did not come to rest within %v:\n  %s", o.At.UTC().Format(time.RFC3339Nano), o.Wait,
		strings.Join(o.What, "\n  "))
}

// Clock is the virtual clock of an installation. Advances must not overlap.
type Clock struct {
	Schedule  *schedule.Schedule // of the virtual installation
	JetStream jetstream.JetStream
	Names     keys.Names
	Wait      time.Duration // DefaultWait
	// Fired gets each message with an event, by the time of firing. Default: nobody does.
	Fired func(data []byte) error

	fired, retries jetstream.Stream
	last           uint64               // the sequence number of the last firing that Fired has
	asked          map[string]time.Time // by consumer: when it last asked for messages, or worked on some
	passed         map[string]uint64    // by consumer: the last sequence searched without a message for it
}

// Start looks up the streams. Advance calls it if needed. Firings from before are not given to Fired.
func (c *Clock) Start(ctx context.Context) (err error) {
	if c.Wait == 0 {
		c.Wait = DefaultWait
	}
	c.asked, c.passed = map[string]time.Time{}, map[string]uint64{}
	if c.fired, err = c.JetStream.Stream(ctx, c.Names.FiredStream()); err != nil {
		return fmt.Errorf("travel: stream %s: %w", c.Names.FiredStream(), err)
	}
	if c.retries, err = c.JetStream.Stream(ctx, c.Names.RetryStream()); err != nil {
		return fmt.Errorf("travel: stream %s: %w", c.Names.RetryStream(), err)
	}
	c.last = c.fired.CachedInfo().State.LastSeq
	return nil
}

// Now returns the virtual time.
func (c *Clock) Now(ctx context.Context) (time.Time, error) { return c.Schedule.Clock(ctx) }

// AdvanceTo moves the clock to a time: from each due time on the way to the next, once all has come to rest there. A
// time that has passed moves nothing, but waits for rest. It returns an *Open if something did not come to rest in
// time.
func (c *Clock) AdvanceTo(ctx context.Context, to time.Time) error {
	if c.fired == nil {
		if err := c.Start(ctx); err != nil {
			return err
		}
	}
	target := schedule.MillisOf(to)
	at := schedule.AtOnce // first finish all work due by now
	for {
		next, err := c.settle(ctx, at)
		if err == nil {
			err = c.report(ctx)
		}
		if err != nil || at == target {
			return err
		}
		at = target
		if next != schedule.Nothing {
			at = min(next, target)
		}
	}
}

// settle moves the clock to a time and waits until all has come to rest. It returns when something is due next.
func (c *Clock) settle(ctx context.Context, at schedule.Millis) (next schedule.Millis, err error) {
	within, cancel := context.WithTimeout(ctx, c.Wait)
	defer cancel()
	last, reached := []string{"the servers, which do not answer"}, schedule.AtOnce
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		s, open, err := c.look(within, at)
		switch {
		case ctx.Err() != nil:
			return 0, context.Cause(ctx)
		case err != nil && within.Err() == nil:
			return 0, err
		case err == nil && len(open) == 0:
			return s.Next, nil
		case err == nil:
			last, reached = open, s.Now
		}
		select {
		case <-within.Done():
			return 0, &Open{At: reached.Time(), What: last, Wait: c.Wait}
		case <-time.After(pause):
		}
	}
}

// look looks at everything that has to come to rest, causes before their effects: firings,
// consumers, retry requests, keys that consumers have set, and once more the firings.
func (c *Clock) look(ctx context.Context, at schedule.Millis) (s schedule.VirtualState, open []string, err error) {
	if s, err = c.Schedule.Advance(ctx, at, mostNamed); err != nil {
		return s, nil, err
	}
	if open = openTimers(s); len(open) > 0 {
		return s, open, nil
	}
	for _, stream := range []jetstream.Stream{c.fired, c.retries} {
		if open, err = c.openConsumers(ctx, stream); err != nil || len(open) > 0 {
			return s, open, err
		}
	}
	within, cancel := context.WithTimeout(ctx, max(c.Wait/keysShare, leastKeysWait))
	err = c.Schedule.AwaitKeys(within)
	cancel()
	if err != nil && ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
		return s, []string{"keys that were just set"}, nil
	}
	if err != nil {
		return s, nil, err
	}
	before := c.fired.CachedInfo().State.LastSeq // as of the last read by openConsumers
	if s, err = c.Schedule.Advance(ctx, schedule.AtOnce, mostNamed); err != nil {
		return s, nil, err
	}
	if open = openTimers(s); len(open) > 0 {
		return s, open, nil
	}
	info, err := c.fired.Info(ctx)
	if err != nil {
		return s, nil, fmt.Errorf("travel: stream %s: %w", c.Names.FiredStream(), err)
	}
	if info.State.LastSeq != before {
		return s, []string{"firings of just now"}, nil
	}
	if s.Holds {
		open, err = c.openHolds(ctx, &s)
	}
	return s, open, err
}

// openTimers returns the timers that are due or firing, and says if timers of a restored Redis wait.
func openTimers(s schedule.VirtualState) (open []string) {
	if s.Restored {
		open = append(open, "timers of a restored Redis, which wait to be compared with the streams")
	}
	for _, key := range s.Open {
		open = append(open, "timer "+keys.EncodeText(key))
	}
	if more := s.Due + s.Firing - len(s.Open); more > 0 && len(s.Open) > 0 {
		open = append(open, fmt.Sprintf("and %d other timers", more))
	}
	return open
}

// askedLately is the time after which a consumer counts as one that asks for nothing: clients ask anew within it.
const askedLately = 500 * time.Millisecond

// openConsumers returns the consumers of a stream that have messages in hand, or messages to come for which they ask.
func (c *Clock) openConsumers(ctx context.Context, stream jetstream.Stream) (open []string, err error) {
	info, err := stream.Info(ctx)
	if err != nil {
		return nil, fmt.Errorf("travel: stream %s: %w", stream.CachedInfo().Config.Name, err)
	}
	listed := stream.ListConsumers(ctx)
	for is := range listed.Info() {
		if is.Config.AckPolicy == jetstream.AckNonePolicy {
			continue // it only watches, as timerd watch does
		}
		name, now := info.Config.Name+" "+is.Name, time.Now()
		if _, known := c.asked[name]; !known || is.NumWaiting > 0 || is.NumAckPending > 0 || is.PushBound {
			c.asked[name] = now
		}
		switch {
		case is.NumAckPending > 0:
			open = append(open, fmt.Sprintf("consumer %s has %d in hand", is.Name, is.NumAckPending))
		case now.Sub(c.asked[name]) >= askedLately:
		case is.NumPending > 0:
			open = append(open, fmt.Sprintf("consumer %s has %d to come", is.Name, is.NumPending))
		default:
			uncounted, err := c.hasUncounted(ctx, stream, name, is, info.State.LastSeq)
			if err != nil {
				return nil, err
			}
			if uncounted {
				open = append(open, fmt.Sprintf("consumer %s has some to come", is.Name))
			}
		}
	}
	if err := listed.Err(); err != nil {
		return nil, fmt.Errorf("travel: consumers of stream %s: %w", info.Config.Name, err)
	}
	slices.Sort(open)
	return open, nil
}

// hasUncounted reports whether the stream has a message for a consumer that counts none to come. The server
// acknowledges a message before it adds it to the counts of consumers.
func (c *Clock) hasUncounted(ctx context.Context, stream jetstream.Stream, name string, is *jetstream.ConsumerInfo,
	last uint64,
) (bool, error) {
	from := max(is.Delivered.Stream, c.passed[name])
	if from >= last || is.Config.DeliverPolicy == jetstream.DeliverLastPerSubjectPolicy { // this policy skips messages
		return false, nil
	}
	subjects := is.Config.FilterSubjects
	if len(subjects) == 0 {
		subjects = []string{cmp.Or(is.Config.FilterSubject, ">")}
	}
	for _, subject := range subjects {
		_, err := stream.GetMsg(ctx, from+1, jetstream.WithGetMsgSubject(subject))
		if err == nil {
			return true, nil
		}
		if !errors.Is(err, jetstream.ErrMsgNotFound) {
			return false, fmt.Errorf("travel: messages for consumer %s: %w", is.Name, err)
		}
	}
	c.passed[name] = last
	return false, nil
}

// Asks returns nil if a program asks for events through a durable consumer, so that each later advance waits for its
// answers.
func Asks(ctx context.Context, js jetstream.JetStream, stream, durable string) error {
	is, err := js.Consumer(ctx, stream, durable)
	if err == nil && is.CachedInfo().NumWaiting == 0 {
		err = errors.New("it asks for no events")
	}
	if err != nil {
		return fmt.Errorf("travel: consumer %s of stream %s: %w", durable, stream, err)
	}
	return nil
}

// openHolds returns the holds that are over, and the resumes that have more to release now. The end of a hold is a time
// at which something is due.
func (c *Clock) openHolds(ctx context.Context, s *schedule.VirtualState) (open []string, err error) {
	list, err := c.Schedule.Holds(ctx)
	if err != nil {
		return nil, err
	}
	for i := range list.Holds {
		h := &list.Holds[i]
		switch {
		case h.Resume == nil && h.Until == 0:
		case h.Resume == nil && h.Until > s.Now:
			if s.Next == schedule.Nothing || h.Until < s.Next {
				s.Next = h.Until
			}
		case h.Resume == nil:
			open = append(open, "hold of "+h.Namespace.String())
		case s.Released == schedule.Nothing && len(list.Keeping(h)) == 0:
			open = append(open, "resume of "+h.Namespace.String())
		}
	}
	return open, nil
}

// report gives the firings since the last report to Fired.
func (c *Clock) report(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.Wait)
	defer cancel()
	last := c.fired.CachedInfo().State.LastSeq
	for ; c.last < last; c.last++ {
		if c.Fired == nil {
			continue
		}
		m, err := c.fired.GetMsg(ctx, c.last+1)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			continue
		}
		if err == nil {
			err = c.Fired(m.Data)
		}
		if err != nil {
			return fmt.Errorf("travel: read a firing: %w", err)
		}
	}
	return nil
}
