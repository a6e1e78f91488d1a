package listener

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// Evidence records the time since which events arrive, and the server's clock.
type Evidence interface {
	StartHearing(ctx context.Context) error
	StopHearing()
	ReadClock(server, sent, received time.Time)
	Mark(ctx context.Context, info, canary string) error
}

// canary checks end to end that events reach the subscription. At each interval the command connection writes a key
// with a short TTL, and touches the previous ones whose TTL has run out. Each of the resulting events stands for a
// class of events. A lost canary means that flags were lost, that the server is no longer the master, or that the
// connection is half open. Consecutive canaries have different keys and run out one after the other, so a canary that
// arrives before an earlier one shows a loss in between.
//
// A pause of writes (CLIENT PAUSE, a planned failover, the hand-off of a slot) loses no events. The canary waits like
// every other write, and counts only once the server has answered. If the slot of the canaries moves, the next ones are
// in another slot.
type canary struct {
	rdb               *redis.Client
	evidence          Evidence
	directory         Directory
	hints             *buffer
	health            *health
	coverage          Coverage
	reported          *reported
	interval, timeout time.Duration
	log               *slog.Logger

	instance  string
	subscribe func(ctx context.Context, to, from []string) error // changes the session's subscription to these keys

	keys  atomic.Pointer[[]string] // used in turn
	next  int                      // index of the next one
	runID string                   // of the server
	deaf  bool                     // expired events are missing
	moved time.Time                // time at which the canaries' slot left the server; zero while it is here

	caughtUp chan struct{} // signals that all hints before the last canary are in the schedule
	marking  sync.Mutex    // held while a mark is written
	marks    sync.WaitGroup

	mu          sync.Mutex
	unconfirmed int       // pending confirmations of subscriptions to the canaries' keys
	unanswered  bool      // it is unknown whether the last canary was sent: the server answers, and takes no writes
	resumed     time.Time // end of the last pause of writes

	sent  map[string][]sending // by event: the canaries that lack it, the last one of each key
	flows map[string]bool      // by event: it came in this session
	heard time.Time            // lower bound of the time of any event received from now on
	mark  mark                 // for the last canary
	// idleAt is the key of the last canary at whose event all hints were in the schedule.
	idleAt string
}

// mark has the arguments of [schedule.Node.Mark].
type mark struct{ info, key string }

// sending is one canary.
type sending struct {
	key      string
	at       time.Time // before it was sent
	answered time.Time // when the server had answered; zero before
}

// canaryEvents returns the events of a canary, with the flags they need.
func canaryEvents() map[string]string {
	return map[string]string{"set": "K$", "expire": "Kg", "expired": "Ex"}
}

// begin begins a session.
func (c *canary) begin(p keys.Partition, instance string) {
	c.sent, c.flows, c.heard, c.caughtUp = map[string][]sending{}, map[string]bool{}, time.Now(), make(chan struct{}, 1)
	c.instance = instance
	c.setKeys(p)
}

// setKeys moves the next canaries to a partition. Canaries count as lost before all but one of the keys are
// outstanding.
func (c *canary) setKeys(p keys.Partition) []string {
	names := make([]string, 2+int(c.timeout/c.interval))
	for n := range names {
		names[n] = keys.CanaryKey(p, c.instance, n)
	}
	c.keys.Store(&names)
	c.next = 0
	return names
}

// owns reports whether a key belongs to a canary.
func (c *canary) owns(key string) bool {
	return strings.HasPrefix(key, keys.CanaryPrefix) && slices.Contains(*c.keys.Load(), key)
}

// receive takes an event of a canary. The first event of a session shows that events flow. receive returns an error if
// earlier canaries were lost.
func (c *canary) receive(key, event string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.flows) == 0 {
		c.health.setFlow(nil)
	}
	c.flows[event] = true
	if event == "set" && c.hints.idle() {
		c.idleAt = key
		c.signalMark()
	}
	waiting := c.sent[event]
	i := slices.IndexFunc(waiting, func(s sending) bool { return s.key == key })
	if i < 0 {
		return nil // of an earlier session
	}
	c.sent[event] = waiting[i+1:]
	c.health.noteArrival(waiting[i].at)
	if waiting[i].at.After(c.heard) {
		c.heard = waiting[i].at
	}
	lost := 0
	for _, before := range waiting[:i] {
		if !before.answered.IsZero() {
			lost++
		}
	}
	if lost > 0 {
		return fmt.Errorf("keyspace events were lost: %d canaries are missing, and a later canary arrived", lost)
	}
	return nil
}

// heardSince returns a lower bound on when any event received from now on happened.
func (c *canary) heardSince() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.heard
}

// flowing reports whether any event of a canary came in this session.
func (c *canary) flowing() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.flows) > 0
}

// arrived reports whether a certain event of a canary came in this session.
func (c *canary) arrived(event string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.flows[event]
}

// run sends canaries until ctx ends or the session ends for want of their events, and returns the cause. flagsErr is
// the failure to switch flags on, or nil.
func (c *canary) run(ctx context.Context, flagsErr error) error {
	tick := time.NewTicker(c.interval)
	defer tick.Stop()
	defer c.marks.Wait()
	for {
		if err := c.release(ctx); err != nil {
			return err
		}
		overdue, adopting := c.check()
		if len(overdue) > 0 {
			err := c.reportLost(ctx, overdue)
			if lost, ok := errors.AsType[*eventsLostError](err); ok {
				return lost
			}
			if err != nil {
				flagsErr = err
			}
		}
		if len(overdue) == len(canaryEvents()) {
			return errors.Join(fmt.Errorf("no event of a canary arrived for %s", c.timeout), flagsErr)
		}
		if c.complete() {
			c.reported.missing = ""
		}
		if deaf := slices.Contains(overdue, "Ex"); deaf && !c.deaf {
			c.evidence.StopHearing()
			c.deaf = true // for the rest of the session
		}
		if adopting && c.reported.incomplete {
			c.reported.incomplete = false
			c.coverage.Gap("events back")
			c.coverage.SetComplete(true)
		}

		for ticked := false; !ticked; {
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-c.caughtUp:
				c.leaveMark(ctx)
			case <-tick.C:
				ticked = true
			}
		}
	}
}

// release sends a canary. It returns an error if that ends the session.
func (c *canary) release(ctx context.Context) error {
	restarted, err := c.send(ctx)
	var refused redis.Error
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case schedule.IsMoving(err):
		return c.replace(ctx, err)
	case redis.IsReadOnlyError(err):
		return fmt.Errorf("the server is no longer a master: %w", err)
	case errors.As(err, &refused): // for example out of memory
		c.health.setFlow(fmt.Errorf("canary refused: %w", err))
	case errors.Is(err, errNoWrites):
		c.health.setFlow(err)
	case err != nil:
		return fmt.Errorf("canary not sent: %w", err)
	case restarted:
		return errors.New("the server has restarted or changed")
	case c.flowing():
		c.health.setFlow(nil)
	}
	return nil
}

// complete reports whether every event of a canary has come in this session.
func (c *canary) complete() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.flows) == len(canaryEvents())
}

// replace moves the next canaries to another slot of the server, because their slot is moving. An error ends the
// session: the server is no longer a master, or canaries have met moving slots for too long.
func (c *canary) replace(ctx context.Context, moving error) error {
	if c.moved.IsZero() {
		c.moved = time.Now()
	}
	role, err := c.rdb.Info(ctx, "replication").Result()
	switch {
	case err != nil:
		return fmt.Errorf("canary not sent: %w", errors.Join(moving, err))
	case time.Since(c.moved) > c.timeout || !strings.Contains(role, "role:master"):
		return fmt.Errorf("the server does not have the slot of the canary: %w", moving)
	}
	before := *c.keys.Load()
	after := c.setKeys(c.directory.AnyPartition())
	c.mu.Lock()
	c.sent, c.unconfirmed = map[string][]sending{}, len(after)
	c.mu.Unlock()
	return c.subscribe(ctx, after, before)
}

// confirm takes a confirmation of a subscription to a key's channel. It returns false if the canary has not asked for
// it.
func (c *canary) confirm(m *redis.Subscription, key string) bool {
	if !strings.HasPrefix(key, keys.CanaryPrefix) {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if m.Kind == "subscribe" && c.owns(key) && c.unconfirmed > 0 {
		c.unconfirmed--
		return true
	}
	return m.Kind == "unsubscribe"
}

// errNoWrites means that the server answers, but takes no writes.
var errNoWrites = errors.New("the server answers, but takes no writes")

// send sends one canary. It sends none before the previous ones have run out, or while an arrival would go unnoticed.
// It reports whether the server was restarted or replaced.
func (c *canary) send(ctx context.Context) (restarted bool, err error) {
	names := *c.keys.Load()
	c.mu.Lock()
	confirmed := c.unconfirmed == 0
	c.mu.Unlock()
	if !confirmed {
		return false, nil
	}
	began := time.Now()
	there, err := c.touch(ctx)
	if err != nil || there {
		return false, err
	}
	touched := time.Now()
	before := c.outstanding()
	key := names[c.next]
	c.next = (c.next + 1) % len(names)
	c.note(key)
	var info *redis.StringCmd
	_, err = c.rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		info = pipe.Info(ctx, "server", "stats")
		pipe.Set(ctx, key, "", c.interval/2)
		// While writes pause no key runs out. So the previous canaries are touched again before this one runs out.
		for _, previous := range before {
			pipe.Exists(ctx, previous)
		}
		return nil
	})
	if err != nil {
		return false, c.unsent(key, err)
	}
	waited := time.Since(touched)-touched.Sub(began) > c.interval
	c.answered(key, mark{info.Val(), key}, waited)
	runID := runIDOf(info.Val())
	restarted = c.runID != "" && runID != c.runID
	c.runID = runID
	return restarted, nil
}

// touch touches the outstanding canaries in order, and reads the clock. It reports whether one of their keys still
// exists.
func (c *canary) touch(ctx context.Context) (there bool, err error) {
	var exist []*redis.IntCmd
	var clock *redis.TimeCmd
	sent := time.Now()
	_, err = c.rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for _, key := range c.outstanding() {
			exist = append(exist, pipe.Exists(ctx, key))
		}
		clock = pipe.Time(ctx)
		return nil
	})
	if err != nil {
		return false, err
	}
	c.evidence.ReadClock(clock.Val(), sent, time.Now())
	return slices.ContainsFunc(exist, func(n *redis.IntCmd) bool { return n.Val() > 0 }), nil
}

// outstanding returns the keys of the canaries whose expired event has not arrived, in order.
func (c *canary) outstanding() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	names := make([]string, len(c.sent[expired]))
	for i, s := range c.sent[expired] {
		names[i] = s.key
	}
	return names
}

// note notes a canary before it is sent.
func (c *canary) note(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.idleAt = ""
	for event := range canaryEvents() {
		// The previous canary with the same key was sent too long ago to wait for its event.
		waiting := slices.DeleteFunc(c.sent[event], func(s sending) bool { return s.key == key })
		c.sent[event] = append(waiting, sending{key: key, at: time.Now()})
	}
}

// unsent notes that sending a canary failed, and returns the error. Without an answer it is unknown whether the canary
// was sent.
func (c *canary) unsent(key string, err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, answered := errors.AsType[redis.Error](err); !answered {
		c.unanswered = true
		return fmt.Errorf("%w: %w", errNoWrites, err)
	}
	for event, waiting := range c.sent {
		c.sent[event] = slices.DeleteFunc(waiting, func(s sending) bool { return s.key == key })
	}
	return err
}

// answered notes that the server has written a canary. waited reports whether the write took longer than other calls.
func (c *canary) answered(key string, m mark, waited bool) {
	c.moved = time.Time{}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	for _, waiting := range c.sent {
		for i := range waiting {
			if waiting[i].key == key {
				waiting[i].answered = now
			}
		}
	}
	if waited || c.unanswered {
		c.resumed = now
	}
	c.unanswered = false
	c.mark = m
	c.signalMark()
}

// signalMark asks for a mark of the last canary if all hints before it are in the schedule. c.mu is held.
func (c *canary) signalMark() {
	if c.idleAt != c.mark.key {
		return
	}
	select {
	case c.caughtUp <- struct{}{}:
	default:
	}
}

// leaveMark writes a mark of the last canary, in the background, because the server of the marks may hang. It does
// nothing while another mark is being written.
func (c *canary) leaveMark(ctx context.Context) {
	if !c.marking.TryLock() {
		return
	}
	c.mu.Lock()
	m := c.mark
	c.mu.Unlock()
	c.marks.Go(func() {
		defer c.marking.Unlock()
		ctx, cancel := context.WithTimeout(ctx, c.timeout)
		defer cancel()
		if err := c.evidence.Mark(ctx, m.info, m.key); err != nil {
			c.log.Debug("cannot leave a mark of the expired keys", "err", err)
		}
	})
}

// check returns the flags of the missing events, sorted. adopting reports whether the events that adoption needs have
// come in this session and still come.
func (c *canary) check() (overdue []string, adopting bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	adopting = true
	for event, flags := range canaryEvents() {
		late := slices.ContainsFunc(c.sent[event], c.isLate)
		if late {
			overdue = append(overdue, flags)
		}
		if event != "expired" && (late || !c.flows[event]) {
			adopting = false
		}
	}
	slices.Sort(overdue)
	return overdue, adopting
}

// isLate reports whether an event of a canary is overdue. While writes wait, none is. c.mu is held.
func (c *canary) isLate(s sending) bool {
	since := s.answered
	if c.resumed.After(since) {
		since = c.resumed
	}
	return !c.unanswered && !s.answered.IsZero() && time.Since(since) > c.timeout
}

// runIDOf returns the run id in an INFO reply.
func runIDOf(info string) string {
	_, rest, _ := strings.Cut(info, "run_id:")
	id, _, _ := strings.Cut(rest, "\r\n")
	return id
}
