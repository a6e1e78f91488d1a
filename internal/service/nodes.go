package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/timerd-io/timerd/internal/config"
	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/internal/status"
	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/listener"
	"github.com/timerd-io/timerd/reconciler"
	"github.com/timerd-io/timerd/schedule"
)

// watchInterval is the interval of looks at a cluster's masters and their slots.
const watchInterval = time.Second

// followTimeout bounds one look at the masters and their slots.
const followTimeout = 5 * time.Second

// vanishedFor is the time for which vanished timers are reported to Losses: enough to store them in NATS.
const vanishedFor = time.Minute

// nodes serves the nodes of the schedule. Those of a cluster come and go as the cluster changes.
type nodes struct {
	config     config.Service
	log        *slog.Logger
	metrics    *metrics
	taken      *takeovers
	incidents  *incidents
	publisher  reconciler.Publisher
	canPublish func() bool
	schedule   *schedule.Schedule
	db         int
	self       schedule.Self

	mu      sync.Mutex
	served  map[*schedule.Node]*servedNode
	aside   schedule.ParkedCounts // on all of them
	problem error                 // why the nodes, or some of them, are unknown
}

// servedNode has the parts that serve one node.
type servedNode struct {
	rec  *reconciler.Reconciler
	hear *hearing // nil without keyspace events
	stop func()   // stops the parts and waits for their end

	counts     schedule.DueScan // the counts of the last sweep; guarded by nodes.mu
	scanned    bool             // a sweep has ended; guarded by nodes.mu
	incomplete bool             // events needed for adoption are missing; guarded by nodes.mu
	vanished   int64            // timers that vanished lately; guarded by nodes.mu
	differs    int64            // timers by which accounts differ; guarded by nodes.mu
	vanishedAt time.Time        // the last time timers vanished; guarded by nodes.mu
}

// newServed returns the parts that serve a node.
func (s *nodes) newServed(node *schedule.Node) *servedNode {
	log := s.log
	if node.Name() != "" {
		log = log.With("redis", node.Name())
	}
	rec := reconciler.New(node, s.publisher, s.config.Namespaces, s.self.Instance)
	n := &servedNode{rec: rec}
	counted := &nodeMetrics{
		metrics: s.metrics, taken: s.taken, node: n, update: s.update, log: log,
		aside: newParked(s.metrics.setAside.WithLabelValues(string(query.ParkedRights)), log),
	}
	rec.Logger = log
	rec.SweepInterval = s.config.SweepInterval
	rec.Lease = s.config.Lease
	rec.Self, rec.Counts, rec.CanPublish = s.self, s.metrics.counts.next, s.canPublish
	rec.Metrics, rec.Coverage.Metrics = counted, counted
	hear := &hearing{
		newListener: func() *listener.Listener { return s.newListener(node, rec, counted, log) },
		believed:    reconciler.Believed(s.config.SweepInterval),
	}
	rec.Events = hear
	if s.config.KeyspaceEvents {
		n.hear = hear
		return n
	}
	node.StopHearing() // without a listener nothing arrives
	rec.Coverage.SetComplete(false)
	return n
}

// newListener returns a listener to a node.
func (s *nodes) newListener(node *schedule.Node, rec *reconciler.Reconciler, m listener.Metrics,
	log *slog.Logger) *listener.Listener {
	events := listener.New(node.Server(), node, rec.Coverage, s.db, s.config.Namespaces, s.self.Instance)
	events.Logger, events.Metrics, events.Agenda, events.Busy = log, m, rec, rec.Busy
	events.Lag = func() time.Duration {
		if rec.IsFirst() {
			return 0
		}
		return standbyLag
	}
	return events
}

// update changes the state of the nodes and exports it.
func (s *nodes) update(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
	var pending, firing, held, differs int64
	s.aside = schedule.ParkedCounts{}
	complete := true
	for _, n := range s.served {
		pending += n.counts.Pending
		firing += n.counts.Firing
		held += n.counts.Held
		differs += n.differs
		s.aside.Add(n.counts.Parked)
		complete = complete && !n.incomplete
	}
	s.metrics.pending.Set(float64(pending))
	s.metrics.firing.Set(float64(firing))
	s.metrics.held.Set(float64(held))
	s.metrics.differs.Set(float64(differs))
	s.metrics.setAsideTimers(s.aside)
	s.metrics.setComplete(complete)
}

// start serves a node until it is stopped or ctx ends.
func (s *nodes) start(ctx context.Context, node *schedule.Node, n *servedNode) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	n.stop = func() {
		cancel()
		wg.Wait()
	}
	s.update(func() { s.served[node] = n })
	wg.Go(func() { n.rec.Run(ctx) })
	if n.hear != nil {
		wg.Go(func() { n.hear.run(ctx) })
	}
}

// run serves until ctx ends.
func (s *nodes) run(ctx context.Context) {
	var asked sync.WaitGroup
	asked.Go(func() { s.auditAsked(ctx) })
	defer func() {
		asked.Wait()
		for _, n := range s.list() {
			n.stop()
		}
	}()
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	for {
		err := s.follow(ctx)
		if ctx.Err() != nil {
			return
		}
		s.noteSteps()
		if _, some := errors.AsType[*schedule.AwayError](err); some {
			err = nil // the check of each server reports this
		}
		s.mu.Lock()
		if err != nil && s.problem == nil {
			s.log.Warn("cannot find the servers of the schedule; trying again", "err", err)
		}
		s.problem = err
		s.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// follow serves exactly the present nodes. The parts it starts run until ctx ends.
func (s *nodes) follow(ctx context.Context) error {
	asking, cancel := context.WithTimeout(ctx, followTimeout)
	defer cancel()
	found, err := s.schedule.Nodes(asking)
	if len(found) == 0 {
		return err
	}
	gone := s.list()
	for place, node := range found {
		n, ok := gone[node]
		delete(gone, node)
		came := node.TakeNew()
		if !ok {
			n = s.newServed(node)
		}
		n.rec.SetPlace(place)
		switch {
		case !ok:
			if node.Name() != "" {
				s.log.Info("serving a master of the cluster", "redis", node.Name(), "slots", came)
			}
			s.start(ctx, node, n)
		case came > 0:
			s.log.Info("slots have come from another master", "redis", node.Name(), "slots", came)
			n.rec.TookOver()
		}
	}
	for node, n := range gone {
		s.log.Info("no longer a master with slots", "redis", node.Name())
		s.update(func() { delete(s.served, node) })
		n.stop()
	}
	return err
}

// noteSteps notes and logs the steps of the clocks of the servers.
func (s *nodes) noteSteps() {
	for node := range s.list() {
		for _, step := range node.TakeClockSteps() {
			server := node.Server().Options().Addr
			s.incidents.stepped(s.metrics.counts.noteStep(node.Name(), step), server)
			direction := "forward"
			if step.By < 0 {
				direction = "back"
			}
			s.log.Warn("the clock of Redis was stepped; due times follow it", "redis", server,
				"direction", direction,
				"by", step.By.Abs().Round(time.Millisecond), "to", step.At.UTC().Format(time.RFC3339))
		}
	}
}

// list returns the served nodes.
func (s *nodes) list() map[*schedule.Node]*servedNode {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.served)
}

// Armed passes the due time of a timer on to its node; nodes is a schedule.Agenda.
func (s *nodes) Armed(key keys.Key, due schedule.Millis) {
	p := s.schedule.Partition(key.String())
	for _, n := range s.list() {
		n.rec.Armed(p, due)
	}
}

// Skipped counts missed occurrences.
func (s *nodes) Skipped(n int64) { s.metrics.skipped.Add(float64(n)) }

// check asks every server whether it works, all at once: a silent one does not delay the others.
func (s *nodes) check(ctx context.Context) error {
	s.mu.Lock()
	problem := s.problem
	s.mu.Unlock()
	served := s.list()
	if len(served) == 0 && problem == nil {
		return errors.New("the servers of the schedule are not known yet")
	}
	return errors.Join(problem, each(served, func(node *schedule.Node, _ *servedNode) error {
		err := beyondMemory(node.Check(ctx))
		if late, ok := errors.AsType[net.Error](err); diag.Refusal(err) == nil && (!ok || !late.Timeout()) {
			return err
		}
		f := status.OfServer(ctx, node, err)
		return &diag.Fault{What: f.Text, Remedy: f.Fix, Err: err}
	}))
}

// beyondMemory returns err, or nil if err means that Redis is out of memory: firing needs no memory, and [problems]
// report it.
func beyondMemory(err error) error {
	if refusal := diag.Refusal(err); refusal != nil && refusal.Word == diag.OutOfMemory {
		return nil
	}
	return err
}

// setAside reports the timers set aside.
func (s *nodes) setAside() (found diag.Findings) {
	s.mu.Lock()
	aside := s.aside
	s.mu.Unlock()
	var said []string
	if aside.Rights > 0 {
		said = append(said, fmt.Sprintf("%d timers whose keys timerd may not read", aside.Rights))
	}
	if aside.Refused > 0 {
		said = append(said, fmt.Sprintf("%d timers whose subjects NATS refuses", aside.Refused))
	}
	if aside.Guard > 0 {
		said = append(said, fmt.Sprintf("%d timers whose guards timerd may not read", aside.Guard))
	}
	if len(said) > 0 {
		found.Warn("", "%s; timerd doctor names one of each and what to do", strings.Join(said, ", "))
	}
	return found
}

// counted returns each server's number of timers at its last sweep.
func (s *nodes) counted() (all []streams.Counted) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for node, n := range s.served {
		partitions := node.Master().Partitions
		if len(partitions) == 0 {
			continue
		}
		one := streams.Counted{Server: node.Name(), Key: slices.Min(partitions).Counted(), Timers: -1}
		if time.Since(n.vanishedAt) < vanishedFor {
			one.Vanished = n.vanished
		}
		if n.scanned {
			one.Timers = n.counts.Pending + n.counts.Firing + n.counts.Held
		}
		all = append(all, one)
	}
	return all
}

// claims returns an error unless timers of every server are claimed as they become due.
func (s *nodes) claims(context.Context) error {
	return each(s.list(), func(_ *schedule.Node, n *servedNode) error { return n.rec.Healthy() })
}

// hears returns an error unless the keyspace events of every server arrive and are processed.
func (s *nodes) hears(context.Context) error {
	served := s.list()
	if len(served) == 0 {
		return errors.New("not subscribed yet")
	}
	return each(served, func(_ *schedule.Node, n *servedNode) error { return beyondMemory(n.hear.healthy()) })
}

// each asks about every server at the same time and returns the errors in the order of the servers, with their names if
// there are several. That the cluster is down is reported once, without a name: while one master is away, all others
// report it.
func each(served map[*schedule.Node]*servedNode, ask func(*schedule.Node, *servedNode) error) error {
	nodes := slices.SortedFunc(maps.Keys(served), func(a, b *schedule.Node) int {
		return strings.Compare(a.Name(), b.Name())
	})
	errs := make([]error, len(nodes))
	var asking sync.WaitGroup
	for i, node := range nodes {
		asking.Go(func() { errs[i] = ask(node, served[node]) })
	}
	asking.Wait()
	var wrong []error
	down := false
	for i, err := range errs {
		switch {
		case err == nil:
		case schedule.IsClusterDown(err):
			down = true
		case nodes[i].Name() == "":
			wrong = append(wrong, err)
		default:
			wrong = append(wrong, fmt.Errorf("%s: %w", nodes[i].Name(), err))
		}
	}
	if down {
		wrong = append(wrong, schedule.ErrClusterDown)
	}
	return errors.Join(wrong...)
}
