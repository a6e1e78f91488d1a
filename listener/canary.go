package listener

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// Evidence records since when events are heard, and the server's clock.
type Evidence interface {
	StartHearing(ctx context.Context) error
	StopHearing()
	ReadClock(server, sent, received time.Time)
	Mark(ctx context.Context, info, canary string) error
}

// canary checks, end to end, that events reach the subscription: at each interval the command connection writes a key
// with a short TTL and touches the one before it, whose TTL has run out. Each of the events that this causes stands for
// a class of events. A canary that is lost means that flags were lost, that the server is no longer the master, or
// that the connection is half open. Consecutive canaries have different keys, and events keep their order, so a canary that
// arrives before an earlier one shows that events were lost in between.
type canary struct {
	rdb               *redis.Client
	evidence          Evidence
	hints             *buffer
	health            *health
	coverage          Coverage
	reported          *reported
	interval, timeout time.Duration
	log               *slog.Logger

	keys  []string // taken in turn
	next  int      // index of the next one
	runID string   // of the server
	deaf  bool     // expired events are missing

	caughtUp chan struct{} // all that happened before the last canary has been taken in
	marking  sync.Mutex    // held while a mark is being written
	marks    sync.WaitGroup

	mu    sync.Mutex
	sent  map[string][]sending // event -> the canaries without it, of each key the last
	flows map[string]bool      // event -> whether it ever came in this session
	heard time.Time            // any event received from now on happened then or later
	mark  mark                 // of the last canary
	// idleAt is the last canary's key if all hints had been taken in when its event came.
	idleAt string
}

// mark is what [schedule.Node.Mark] gets.
type mark struct{ info, key string }

// sending is one canary.
type sending struct {
	key string
	at  time.Time
}

// canaryEvents returns the events of a canary, and the flags that they need.
func canaryEvents() map[string]string {
	return map[string]string{"set": "K$", "expire": "Kg", "expired": "Ex"}
}

// begin begins a session. There is one key more than canaries can be
// on their way before they count as lost.
func (c *canary) begin(p keys.Partition, instance string) {
	c.sent, c.flows, c.heard, c.caughtUp = map[string][]sending{}, map[string]bool{}, time.Now(), make(chan struct{}, 1)
	for n := range 2 + int(c.timeout/c.interval) {
		c.keys = append(c.keys, keys.CanaryKey(p, instance, n))
	}
}

// receive takes one of the canary's events. The first of a session shows
// that events flow. It returns an error if earlier ones were lost.
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
	if waiting[i].at.After(c.heard) {
		c.heard = waiting[i].at
	}
	if i > 0 {
		return fmt.Errorf("keyspace events were lost: %d canaries did not arrive, but a later one did", i)
	}
	return nil
}

// heardSince returns a lower bound on when any event received from now on happened.
func (c *canary) heardSince() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.heard
}

// flowing tells whether any event came in this session.
func (c *canary) flowing() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.flows) > 0
}

// run sends canaries until ctx ends or none of their events comes any more; it
// returns why. flagsErr says why flags could not be switched on, if so.
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
			if lost, ok := errors.AsType[*flagsLostError](err); ok {
				return lost
			}
			if err != nil {
				flagsErr = err
			}
		}
		if len(overdue) == len(canaryEvents()) {
			return errors.Join(fmt.Errorf("no canary arrived for %s", c.timeout), flagsErr)
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

// release sends a canary. An error ends the session.
func (c *canary) release(ctx context.Context) error {
	restarted, err := c.send(ctx)
	var refused redis.Error
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case schedule.IsMoving(err) || redis.IsReadOnlyError(err):
		return fmt.Errorf("the server does not have the slot of the canary: %w", err)
	case errors.As(err, &refused): // out of memory, for one
		c.health.setFlow(fmt.Errorf("canary refused: %w", err))
	case err != nil:
		// It may have been sent or not, and then nobody could count them.
		return fmt.Errorf("canary not sent: %w", err)
	case restarted:
		return errors.New("the server has restarted or changed")
	case c.flowing():
		c.health.setFlow(nil)
	}
	return nil
}

// complete tells whether every event of a canary has come in this session.
func (c *canary) complete() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.flows) == len(canaryEvents())
}

// send sends one canary. It tells whether the server is another one than before, or has restarted.
func (c *canary) send(ctx context.Context) (restarted bool, err error) {
	key, before := c.keys[c.next], c.keys[(c.next+len(c.keys)-1)%len(c.keys)]
	c.next = (c.next + 1) % len(c.keys)
	c.mu.Lock()
	c.idleAt = ""
	for event := range canaryEvents() {
		c.sent[event] = append(c.sent[event], sending{key, time.Now()})
		if len(c.sent[event]) > len(c.keys) {
			c.sent[event] = c.sent[event][1:]
		}
	}
	c.mu.Unlock()
	var info *redis.StringCmd
	var clock *redis.TimeCmd
	sent := time.Now()
	_, err = c.rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.Exists(ctx, before)
		info = pipe.Info(ctx, "server", "stats")
		pipe.Set(ctx, key, "", c.interval/2)
		clock = pipe.Time(ctx)
		return nil
	})
	if err != nil {
		c.mu.Lock()
		for event, waiting := range c.sent {
			c.sent[event] = waiting[:max(len(waiting)-1, 0)]
		}
		c.mu.Unlock()
		return false, err
	}
	c.evidence.ReadClock(clock.Val(), sent, time.Now())
	c.mu.Lock()
	c.mark = mark{info.Val(), key}
	c.signalMark()
	c.mu.Unlock()
	runID := runIDOf(info.Val())
	restarted = c.runID != "" && runID != c.runID
	c.runID = runID
	return restarted, nil
}

// signalMark asks for a mark of the last canary if all that happened before has been taken in. c.mu is held.
func (c *canary) signalMark() {
	if c.idleAt != c.mark.key {
		return
	}
	select {
	case c.caughtUp <- struct{}{}:
	default:
	}
}

// leaveMark writes a mark of the last canary, without waiting for it: in a cluster the mark may be on a server that hangs.
// While one is being written, others are left out.
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

// check returns the flags of the events that are missing, sorted, and whether the events that adoption needs have come in
// this session and are not missing.
func (c *canary) check() (overdue []string, adopting bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	adopting = true
	for event, flags := range canaryEvents() {
		waiting := c.sent[event]
		late := len(waiting) > 0 && time.Since(waiting[0].at) > c.timeout
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

// flagsLostError ends a session in which flags were lost, and events with them.
type flagsLostError struct{ missing string }

func (e *flagsLostError) Error() string {
	return "keyspace events were lost: the flags for " + e.missing + " had been switched off; they are on again"
}

// reportLost logs once that events are missing, and tries to switch their flags on again. If that works it returns a
// *flagsLostError, because a new session makes up for everything; otherwise it returns why.
func (c *canary) reportLost(ctx context.Context, overdue []string) error {
	missing := strings.Join(overdue, " ")
	if missing == c.reported.missing {
		return nil
	}
	c.reported.missing = missing
	if missing != "Ex" && !c.reported.incomplete { // expired is only a help
		c.reported.incomplete = true
		c.coverage.SetComplete(false)
	}
	if err := enableFlags(ctx, c.rdb); err != nil {
		c.log.Warn("some keyspace events do not arrive", "missing", missing, "adoption_by_audit", c.reported.incomplete, "err", err)
		return err
	}
	return &flagsLostError{missing}
}

// runIDOf returns the run id in an INFO reply.
func runIDOf(info string) string {
	_, rest, _ := strings.Cut(info, "run_id:")
	id, _, _ := strings.Cut(rest, "\r\n")
	return id
}
