// Package servers runs the system under torture: Redis in one of several shapes, a nats-server and timerds, each a
// separate process that can be killed, with a breakable proxy on each connection between them.
package servers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"time"

	"github.com/timerd-io/timerd/internal/testenv/lab"
)

// startTimeout bounds the start of a server, or an agreement among several servers, on a busy machine.
const startTimeout = 60 * time.Second

// Shape is a combination of servers.
type Shape string

// The shapes. Standalone is one Redis with one timerd, Several one Redis with three timerds. Sentinel has a master, a
// replica and two timerds. Cluster has three masters, each with a replica, and two timerds.
const (
	Standalone Shape = "standalone"
	Several    Shape = "several"
	Sentinel   Shape = "sentinel"
	Cluster    Shape = "cluster"
)

// Shapes returns all of them.
func Shapes() []Shape { return []Shape{Standalone, Several, Sentinel, Cluster} }

// Timerds returns the number of timerds in a shape, or 0 for an unknown one.
func (s Shape) Timerds() int {
	switch s {
	case Standalone:
		return 1
	case Several:
		return 3
	case Sentinel, Cluster:
		return 2
	}
	return 0
}

// Replicated reports whether Redis has replicas. Then a write must reach a replica to survive a failover.
func (s Shape) Replicated() bool { return s == Sentinel || s == Cluster }

// Config has the settings of a system.
type Config struct {
	Shape  Shape
	Timerd string            // the program
	Dir    string            // for logs and files
	Clock  *lab.Clock        // sets Redis's clock ahead; nil for a run without that
	Env    map[string]string // further variables of the timerds
}

// System is the running servers and processes.
type System struct {
	Shape   Shape
	Redis   Redis
	NATS    *NATS
	Timerds []*Timerd
	// ToRedis and ToNATS are the proxies of each timerd. ToRedis is empty if timerd gets the addresses from the servers
	// themselves.
	ToRedis, ToNATS []*lab.Proxy
	// Deliverers are the timerd deliver processes. There are none before StartDeliverers.
	Deliverers []*Deliverer

	program     string   // timerd
	dir         string   // for logs
	environment []string // of its commands
}

// Start starts everything and returns once all timerds are ready. The caller closes it; after an error nothing is left
// running. report gets a proxy's faults.
func Start(ctx context.Context, c Config, report func(error)) (*System, error) {
	s := &System{Shape: c.Shape, dir: c.Dir}
	if err := s.start(ctx, c, report); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *System) start(ctx context.Context, c Config, report func(error)) (err error) {
	switch c.Shape {
	case Sentinel:
		s.Redis, err = newSentinel(ctx)
	case Cluster:
		s.Redis, err = newCluster(ctx)
	default:
		s.Redis, err = newSingle(ctx, c.Clock)
	}
	if err != nil {
		return err
	}
	if s.NATS, err = newNATS(ctx, filepath.Join(c.Dir, "nats")); err != nil {
		return err
	}
	direct := map[string]string{"TIMERD_REDIS_URL": s.Redis.URL(), "TIMERD_REDIS_MODE": s.Redis.Mode(),
		"TIMERD_NATS_URL": timerdURL(s.NATS.Addr())}
	maps.Copy(direct, c.Env)
	s.program, s.environment = c.Timerd, environment(direct)
	for i := range c.Shape.Timerds() {
		toNATS, err := lab.NewProxy(s.NATS.Addr(), report)
		if err != nil {
			return err
		}
		s.ToNATS = append(s.ToNATS, toNATS)
		env := map[string]string{"TIMERD_NATS_URL": timerdURL(toNATS.Addr()), "TIMERD_REDIS_MODE": s.Redis.Mode()}
		if addr := s.Redis.Addr(); addr != "" {
			toRedis, err := lab.NewProxy(addr, report)
			if err != nil {
				return err
			}
			s.ToRedis = append(s.ToRedis, toRedis)
			env["TIMERD_REDIS_URL"] = asTimerd("redis://" + toRedis.Addr() + "/0")
		} else {
			env["TIMERD_REDIS_URL"] = s.Redis.URL()
		}
		maps.Copy(env, c.Env)
		t, err := newTimerd(c.Timerd, filepath.Join(c.Dir, fmt.Sprintf("timerd-%d.log", i)), env)
		if err != nil {
			return err
		}
		s.Timerds = append(s.Timerds, t)
		if err := t.Start(); err != nil {
			return err
		}
	}
	return s.AwaitReady(ctx, startTimeout)
}

// AwaitReady waits until all timerds are ready. Its error names the first timerd that is not ready.
func (s *System) AwaitReady(ctx context.Context, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for i, t := range s.Timerds {
		if err := t.AwaitReady(ctx); err != nil {
			return fmt.Errorf("timerd %d: %w", i, err)
		}
	}
	return nil
}

// Close ends everything, whatever state it is in.
func (s *System) Close() error {
	var errs []error
	for _, t := range s.Timerds {
		errs = append(errs, t.Kill())
	}
	for _, d := range s.Deliverers {
		errs = append(errs, d.Kill())
		d.ToNATS.Close()
	}
	for _, p := range append(s.ToRedis, s.ToNATS...) {
		p.Close()
	}
	if s.NATS != nil {
		errs = append(errs, s.NATS.Close())
	}
	if s.Redis != nil {
		errs = append(errs, s.Redis.Close())
	}
	return errors.Join(errs...)
}
