package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/listener"
	"github.com/timerd-io/timerd/reconciler"
	"github.com/timerd-io/timerd/schedule"
)

// watchInterval is how often a cluster is asked for its masters and their slots.
const watchInterval = time.Second

// shards serves the schedule: one shard for a single Redis, and in a cluster one for
// each master, which come and go as the cluster changes.
type shards struct {
	config    serviceConfig
	log       *slog.Logger
	metrics   *metrics
	publisher reconciler.Publisher
	schedule  *schedule.Schedule
	server    *redis.Client // the single Redis; nil for a cluster
	db        int
	instance  string

	mu      sync.Mutex
	all     map[*redis.Client]*shard
	problem error // why the cluster's masters are not known, or not all served
}

// shard serves the part of the schedule that is on one server.
type shard struct {
	rec    *reconciler.Reconciler
	events *listener.Listener // nil if there is none
	part   *schedule.Shard    // nil for a single Redis
	addr   string
	stop   func() // ends it and waits for that

	pending, firing int64 // as counted last; guarded by shards.mu
	incomplete      bool  // events that adoption needs stay away; guarded by shards.mu
}

// serverPart is the part of the schedule on one server.
type serverPart interface {
	reconciler.Schedule
	listener.Observer
}

// newShard returns a shard that does not run yet.
func (s *shards) newShard(part serverPart, server *redis.Client) *shard {
	sh := &shard{addr: server.Options().Addr}
	log := s.log
	if s.server == nil {
		log = log.With("redis", sh.addr)
	}
	rec := reconciler.New(part, s.publisher, server, s.config.Namespaces, s.instance)
	sh.rec = rec
	rec.Logger = log
	rec.SweepInterval = s.config.SweepInterval
	rec.Lease = s.config.Lease
	rec.OnAudit = s.metrics.audited
	rec.OnCounts = func(pending, firing int64) {
		s.update(func() { sh.pending, sh.firing = pending, firing })
	}
	rec.OnClaimed = func(claimed schedule.Claimed) {
		s.metrics.rescheduled.Add(float64(claimed.Rescheduled))
		s.metrics.cancelled.Add(float64(claimed.Cancelled))
	}
	if !s.config.KeyspaceEvents {
		sh.incomplete = true
		rec.SetComplete(false)
		return sh
	}
	events := listener.New(server, part, s.db, s.config.Namespaces, s.instance)
	sh.events = events
	events.Logger = log
	events.OnObserved = func(seen schedule.Observed) {
		s.metrics.observed(seen)
		rec.Observed(seen)
	}
	events.OnWake = rec.Wake
	events.Busy = rec.Busy
	events.OnSince = rec.SetSince
	events.OnGap = func(reason string) {
		s.metrics.gaps.WithLabelValues(reason).Inc()
		rec.Gap(reason)
	}
	events.OnComplete = func(complete bool) {
		s.update(func() { sh.incomplete = !complete })
		rec.SetComplete(complete)
	}
	events.OnRefused = func(key string, err error) {
		s.metrics.refused.Inc()
		log.Warn("not a timer", "key", abbreviate(key), "err", err)
	}
	return sh
}

// update changes what is known of the shards and shows it.
func (s *shards) update(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
	var pending, firing int64
	complete := true
	for _, sh := range s.all {
		pending += sh.pending
		firing += sh.firing
		complete = complete && !sh.incomplete
	}
	s.metrics.pending.Set(float64(pending))
	s.metrics.firing.Set(float64(firing))
	s.metrics.setComplete(complete)
}

// start adds a shard and runs it until it is stopped or ctx ends.
func (s *shards) start(ctx context.Context, server *redis.Client, sh *shard) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	sh.stop = func() {
		cancel()
		wg.Wait()
	}
	s.update(func() { s.all[server] = sh })
	wg.Go(func() { sh.rec.Run(ctx) })
	if sh.events != nil {
		wg.Go(func() { sh.events.Run(ctx) })
	}
}

// run serves until ctx ends.
func (s *shards) run(ctx context.Context) {
	defer func() {
		for _, sh := range s.list() {
			sh.stop()
		}
	}()
	if s.server != nil {
		s.start(ctx, s.server, s.newShard(s.schedule, s.server))
		<-ctx.Done()
		return
	}
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	for {
		err := s.follow(ctx)
		if ctx.Err() != nil {
			return
		}
		s.mu.Lock()
		if err != nil && s.problem == nil {
			s.log.Warn("cannot follow the cluster; trying again", "err", err)
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

// follow makes the shards agree with the cluster. Those that it starts run until ctx
// ends.
func (s *shards) follow(ctx context.Context) error {
	asking, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	masters, err := s.schedule.Masters(asking)
	if err != nil {
		return err
	}
	known := s.list()
	var errs []error
	for _, m := range masters {
		server, ok := m.Server.(*redis.Client)
		if !ok {
			return fmt.Errorf("unexpected client of Redis: %T", m.Server)
		}
		sh, ok := known[server]
		delete(known, server)
		if !ok {
			part := s.schedule.Shard(server)
			sh = s.newShard(part, server)
			sh.part = part
		}
		came, err := sh.part.SetPartitions(asking, m.Partitions)
		switch {
		case err != nil:
			errs = append(errs, err)
		case !ok:
			s.log.Info("serving a master of the cluster", "redis", sh.addr, "slots", came)
			s.start(ctx, server, sh)
		case came > 0:
			s.log.Info("slots have come from another master", "redis", sh.addr, "slots", came)
			sh.rec.TookOver()
		}
	}
	for server, sh := range known {
		s.log.Info("no longer a master with slots", "redis", sh.addr)
		s.update(func() { delete(s.all, server) })
		sh.stop()
	}
	return errors.Join(errs...)
}

// list returns the shards by their server.
func (s *shards) list() map[*redis.Client]*shard {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.all)
}

// wake passes on that a timer is due, to the shard that has it.
func (s *shards) wake(key keys.Key, due int64) {
	p := s.schedule.Partition(key.String())
	for _, sh := range s.list() {
		sh.rec.Wake(p, due)
	}
}

// ping asks every server whether it works.
func (s *shards) ping(ctx context.Context) error {
	s.mu.Lock()
	problem := s.problem
	s.mu.Unlock()
	if s.server != nil {
		return s.server.Ping(ctx).Err()
	}
	errs := []error{problem}
	for server, sh := range s.list() {
		info, err := server.ClusterInfo(ctx).Result()
		if err == nil && !strings.Contains(info, "cluster_state:ok") {
			err = errors.New("the cluster is down")
		}
		errs = append(errs, sh.about(err))
	}
	if len(errs) == 1 && problem == nil {
		return errors.New("the masters of the cluster are not known yet")
	}
	return errors.Join(errs...)
}

// hears tells whether keyspace events of every server flow.
func (s *shards) hears(context.Context) error {
	var errs []error
	for _, sh := range s.list() {
		if sh.events != nil {
			errs = append(errs, sh.about(sh.events.Healthy()))
		}
	}
	if len(errs) == 0 {
		return errors.New("not subscribed yet")
	}
	return errors.Join(errs...)
}

// about adds the server of a cluster to an error.
func (sh *shard) about(err error) error {
	if err == nil || sh.part == nil {
		return err
	}
	return fmt.Errorf("%s: %w", sh.addr, err)
}
