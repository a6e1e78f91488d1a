package schedule

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/keys"
)

// stepServers has the servers on which this process has found the library of the steps. It is safe for concurrent use.
type stepServers struct{ names sync.Map } // *redis.Client -> the name of the library

// has reports whether a server has the library.
func (s *stepServers) has(server *redis.Client, scripts *scripts) bool {
	name, ok := s.names.Load(server)
	return ok && name == scripts.steps().name
}

// set records whether a server has a library.
func (s *stepServers) set(server *redis.Client, name string, has bool) {
	if has {
		s.names.Store(server, name)
	} else {
		s.names.CompareAndDelete(server, name)
	}
}

// load loads a library. A server that is out of memory refuses libraries, but no scripts; a user may lack the right.
// Then the steps run as scripts there until it is loaded.
func (s *stepServers) load(ctx context.Context, server *redis.Client, l stepLibrary) error {
	err := server.FunctionLoad(ctx, l.text).Err()
	if err != nil && strings.HasSuffix(err.Error(), fmt.Sprintf("Library '%s' already exists", l.name)) {
		err = nil // another timerd of this version has loaded it
	}
	s.set(server, l.name, err == nil)
	if err != nil {
		return fmt.Errorf("schedule: load the library of steps %q: %w", l.name, err)
	}
	return nil
}

// refusedFor is the time after which a server that has refused the library of steps is given it again: it has more than
// 100 kB.
const refusedFor = 10 * time.Second

// unusedFor is the time without a user after which a library of steps is deleted. A timerd whose library is gone loads
// it again; the wait only spares starting timerds that.
const unusedFor = time.Minute

// ensureSteps loads the library of the steps if it is not among the names of a server's, and deletes this database's
// libraries that no timerd uses any more. Whatever the server refuses is left to a later call: without the library the
// steps run as scripts.
func (n *Node) ensureSteps(ctx context.Context, names []string) error {
	s := n.schedule
	own, others, has := s.scripts.Load().steps(), []string(nil), false
	for _, name := range names {
		if name == own.name {
			has = true
		} else if isStepLibrary(name, s.db) {
			others = append(others, name)
		}
	}
	if has {
		s.loaded.set(n.server, own.name, true)
	} else if err := n.offerSteps(ctx, own); err != nil {
		return err
	}
	for _, name := range n.unusedSteps(ctx, others) {
		if err := n.server.FunctionDelete(ctx, name).Err(); err != nil && !isAnswer(err) {
			return fmt.Errorf("schedule: delete the library of steps %q: %w", name, err)
		}
	}
	return nil
}

// FindSteps has the steps run as functions on each server that has this version's library. A timerd knows these
// servers. Another process runs scripts, which cost more at each call: it calls FindSteps before many calls.
func (s *Schedule) FindSteps(ctx context.Context) {
	masters, err := s.Masters(ctx)
	if err != nil {
		return // the steps say why
	}
	own := s.scripts.Load().steps().name
	_ = askAll(ctx, masters, loadTimeout, func(ctx context.Context, m Master) error {
		list, err := m.Server.FunctionList(ctx, redis.FunctionListQuery{LibraryNamePattern: own}).Result()
		if err == nil && len(list) > 0 {
			s.loaded.set(m.Server, own, true)
		}
		return nil
	})
}

// offerSteps loads the library of the steps, unless the server has just refused it.
func (n *Node) offerSteps(ctx context.Context, own stepLibrary) error {
	n.mu.Lock()
	refused := n.stepsRefused
	n.mu.Unlock()
	if time.Since(refused) < refusedFor {
		return nil
	}
	err := n.schedule.loaded.load(ctx, n.server, own)
	if !isAnswer(err) {
		return err
	}
	n.mu.Lock()
	n.stepsRefused = time.Now()
	n.mu.Unlock()
	return nil
}

// unusedSteps returns the libraries of steps, of some, without a user for unusedFor.
func (n *Node) unusedSteps(ctx context.Context, names []string) (unused []string) {
	var since map[string]time.Time
	n.mu.Lock()
	earlier := n.unusedSince
	n.mu.Unlock()
	defer func() {
		n.mu.Lock()
		n.unusedSince = since
		n.mu.Unlock()
	}()
	if len(names) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, loadTimeout)
	defer cancel()
	said, err := n.schedule.rdb.HVals(ctx, keys.Single.About()).Result()
	if err != nil { // in a cluster it may be another master, which must not delay this one
		return nil
	}
	used := map[string]bool{}
	for _, text := range said {
		var about aboutSteps
		if json.Unmarshal([]byte(text), &about) == nil {
			used[about.Steps] = true
		}
	}
	since = map[string]time.Time{}
	for _, name := range names {
		before, ok := earlier[name]
		switch {
		case used[name]:
		case !ok:
			since[name] = time.Now()
		case time.Since(before) < unusedFor:
			since[name] = before
		default:
			unused = append(unused, name)
		}
	}
	return unused
}

// aboutSteps is a timerd's statement in its heartbeats besides Self.
type aboutSteps struct {
	Steps  string `json:"steps,omitempty"`      // the name of its library of steps
	Counts bool   `json:"in_account,omitempty"` // its steps count in the account
}

// HasSteps reports whether the server has the library of the steps of this version and payload limit.
func (n *Node) HasSteps(ctx context.Context) (bool, error) {
	name := n.schedule.scripts.Load().steps().name
	found, err := n.server.FunctionList(ctx, redis.FunctionListQuery{LibraryNamePattern: name}).Result()
	if err != nil {
		return false, fmt.Errorf("schedule: list the library of steps: %w", err)
	}
	return len(found) > 0, nil
}
