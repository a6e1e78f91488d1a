package deliver

import (
	"context"
	"errors"
	"sync"
	"time"
)

const (
	// cutAfter is the time for calls to finish when Run has to end.
	cutAfter = 6 * time.Second
	// forgetEvery is the interval of forgetting idle hosts.
	forgetEvery = time.Minute
	// lookEvery is the interval at which a process checks its group's file, and lookTimeout bounds one check.
	lookEvery   = 2 * time.Second
	lookTimeout = 5 * time.Second
	// sureAfter is the pause after which a process that has changed the group's file checks whether another process
	// changed it too.
	sureAfter = time.Second
)

// errStarting means that a process has not checked yet.
var errStarting = errors.New("the group's file is not known yet")

// errUnsure means that this process has only just changed its group's file, and another process may have changed it
// too.
var errUnsure = errors.New("the group has only just begun to use this file")

// state is the part of Run's state that others may read.
type state struct {
	mu     sync.Mutex
	ruling error // why it is uncertain that the group uses this process's file
	taking error // why events cannot be fetched
}

// set stores why it is uncertain that the group uses this process's file; nil if it is certain. It reports whether the
// reason is new.
func (s *state) set(err error) (news bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	news = (err == nil) != (s.ruling == nil)
	s.ruling = err
	return news
}

// setTaking sets the reason why events cannot be fetched.
func (s *state) setTaking(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taking = err
}

func (s *state) get() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.Join(s.ruling, s.taking)
}

// Healthy returns nil while this process fetches events and its group uses its file.
func (d *Deliverer) Healthy() error { return d.state.get() }

// Outdated returns an error if this process takes no events because its group uses another file, else nil.
func (d *Deliverer) Outdated() *Outdated {
	d.state.mu.Lock()
	defer d.state.mu.Unlock()
	outdated, _ := errors.AsType[*Outdated](d.state.ruling)
	return outdated
}

// Reload makes Run continue with another configuration, once its group uses it. Calls under way finish by the old one.
// After several calls in a row only the last one counts. Call it from one goroutine at a time.
func (d *Deliverer) Reload(config *Config) {
	select {
	case <-d.reloads:
	default:
	}
	d.reloads <- config
}

// Run delivers until ctx ends. Then running calls get some seconds to finish. Interrupted deliveries are repeated by
// another process, or later.
func (d *Deliverer) Run(ctx context.Context) error {
	d.hosts.now = d.Now
	cut, cutNow := context.WithCancel(context.WithoutCancel(ctx))
	defer cutNow()
	m := &member{d: d, cut: cut}
	forget := time.NewTicker(forgetEvery)
	defer forget.Stop()
	look := time.NewTimer(lookEvery)
	defer look.Stop()
	for {
		select {
		case config := <-d.reloads:
			look.Reset(m.reload(ctx, config))
		case <-look.C:
			look.Reset(m.look(ctx))
		case <-m.lost():
			look.Reset(m.look(ctx))
		case <-forget.C:
			d.hosts.forget()
		case <-ctx.Done():
			m.leave()
			hurry := time.AfterFunc(cutAfter, cutNow)
			m.running.Wait()
			hurry.Stop()
			return nil
		}
	}
}

// member is this process as a member of a group. It is for one goroutine.
type member struct {
	d   *Deliverer
	cut context.Context // ends when running calls must end

	config  *Config // the configuration to use; nil before the first
	group   *group
	went    string         // the Sum of the file with which events were fetched last
	unsure  bool           // the group was changed just now, perhaps by another process too
	now     *worker        // nil while no events are fetched
	running sync.WaitGroup // workers, finishing ones included
}

// reload takes over a configuration, and returns the pause before the next check.
func (m *member) reload(ctx context.Context, config *Config) time.Duration {
	lanes := m.d.lanes(config)
	if m.config != nil && (m.config.Group != config.Group || m.d.lanes(m.config) != lanes) {
		m.leave()
	}
	m.config, m.group = config, newGroup(m.d.js, m.d.Names, config)
	return m.look(ctx)
}

// look checks which file the group uses, and starts a worker if the group uses this process's file. It returns the
// pause before the next check.
func (m *member) look(ctx context.Context) time.Duration {
	if m.config == nil {
		return lookEvery
	}
	asking, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	covers, wrote, err := m.group.join(asking, m.went)
	outdated, isOutdated := errors.AsType[*Outdated](err)
	switch {
	case ctx.Err() != nil:
		return lookEvery
	case isOutdated:
		m.leave()
		if m.d.state.set(outdated) {
			m.d.Logger.Warn("no events are taken", "err", outdated)
		}
		return lookEvery
	case err != nil: // the worker keeps its file, and checks it again before it drops an event
		if m.d.state.set(err) {
			m.d.Logger.Warn("deliveries may have stopped, trying again", "err", err)
		}
		return lookEvery
	}
	m.went = m.config.File.Sum
	m.take(ctx, covers)
	if wrote {
		m.unsure = true
		if m.d.state.get() != nil { // a process that is ready stays ready
			m.d.state.set(errUnsure)
		}
		return sureAfter
	}
	if m.d.state.set(nil) || m.unsure {
		m.d.Logger.Info("events are taken by this file", "group", m.config.Group, "file", m.config.File.String())
	}
	m.unsure = false
	return lookEvery
}

// take starts taking events by the configuration.
func (m *member) take(ctx context.Context, covers coverage) {
	if m.now == nil {
		m.now = newWorker(ctx, m.cut, m.d, m.group.durable(), m.d.route(m.group, covers))
		m.running.Go(m.now.run)
		return
	}
	if before, _ := m.now.rules.get(); before.config != m.config {
		m.now.rules.set(m.d.route(m.group, covers))
		before.close()
	} else {
		m.now.rules.set(before.covering(covers))
	}
}

// leave stops taking events. Events already taken are finished.
func (m *member) leave() {
	if m.now == nil {
		return
	}
	m.now.stop()
	rules, _ := m.now.rules.get()
	rules.close()
	m.now = nil
}

// lost returns a channel that gets a value once the group may use another file, or its consumer is gone.
func (m *member) lost() <-chan struct{} {
	if m.now == nil {
		return nil
	}
	return m.now.lost
}
