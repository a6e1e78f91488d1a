package schedule

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/keys"
)

// LibraryState is how the function library in Redis compares with this program's.
type LibraryState string

// The states of the function library.
const (
	LibraryMissing   LibraryState = "missing"
	LibraryDifferent LibraryState = "different" // of another version or payload limit
	LibraryCurrent   LibraryState = "current"
)

// loadTimeout bounds the loading of the function library on one server.
const loadTimeout = 2 * time.Second

// Load checks the version of every server and puts this program's function library in place, with its payload limit,
// replacing another one, and the library of the steps beside other versions' libraries. It returns the previous limit
// in bytes if that was different, and otherwise 0. Its error wraps ErrRedisTooOld for a server that lacks functions. An
// *AwayError has the silent masters of a cluster. EnsureLibrary loads the libraries there once they answer, and where a
// server had no memory for them. Until then the steps run as scripts. After an error the next call looks the masters up
// again.
func (s *Schedule) Load(ctx context.Context) (replaced int, err error) {
	defer func() {
		if err != nil {
			s.topology.reload(ctx)
		}
	}()
	nodes, err := s.Nodes(ctx)
	silent, some := errors.AsType[*AwayError](err)
	if err != nil && !some {
		return 0, err
	}
	var mu sync.Mutex
	err = askAll(ctx, nodes, loadTimeout, func(ctx context.Context, n *Node) error {
		was, err := 0, errors.Unwrap(silent.of(n.server))
		if err == nil {
			was, err = n.load(ctx)
		}
		n.setUnloaded(err != nil)
		if redis.HasErrorPrefix(err, "OOM ") { // firing frees memory
			err = nil
		}
		mu.Lock()
		defer mu.Unlock()
		if err == nil && was != s.MaxPayload() {
			replaced = max(replaced, was)
		}
		return err
	})
	if away, is := errors.AsType[*AwayError](err); is &&
		(len(away.Masters) == len(nodes) || errors.Is(err, ErrRedisTooOld)) {
		err = errors.Join(away.Unwrap()...)
	}
	return replaced, err
}

func (n *Node) setUnloaded(unloaded bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.unloaded = unloaded
}

// load returns the payload limit that it found, 0 if none.
func (n *Node) load(ctx context.Context) (was int, err error) {
	info, err := n.server.Info(ctx, "server").Result()
	if err != nil {
		return 0, fmt.Errorf("schedule: read the server's version: %w", err)
	}
	if err := checkVersion(infoField(info, "redis_version")); err != nil {
		return 0, err
	}
	state, was, err := n.Library(ctx)
	if err == nil {
		err = n.nameDatabase(ctx)
	}
	if err == nil {
		err = n.ensureSteps(ctx, nil)
	}
	switch {
	case err != nil:
		return 0, err
	case state != LibraryCurrent:
		return was, n.loadLibrary(ctx)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.limit, n.libraryCounts = was, true
	return was, nil
}

// EnsureLibrary loads the function library if it is missing, as after FUNCTION FLUSH, and returns whether it did. It
// keeps another version, which belongs to a timerd that started later. But if Load could not ask the server, or that
// had no memory, it does what Load does. It also loads the library of the steps if that is missing, and deletes those
// of the database that no timerd uses any more. If the payload limit has changed, the schedule takes over the new one,
// and limit is that in bytes; otherwise it is 0.
func (n *Node) EnsureLibrary(ctx context.Context) (loaded bool, limit int, err error) {
	n.mu.Lock()
	named, unloaded := n.named, n.unloaded
	n.mu.Unlock()
	if unloaded {
		_, err := n.load(ctx)
		n.setUnloaded(err != nil)
		return false, 0, err
	}
	found, all, err := n.listLibraries(ctx)
	if err == nil && time.Since(named) > nameEvery {
		err = n.nameDatabase(ctx)
	}
	if err == nil {
		err = n.ensureSteps(ctx, all)
	}
	if err != nil {
		return false, 0, err
	}
	if found == nil {
		return true, 0, n.loadLibrary(ctx)
	}
	limit = limitOf(found)
	n.mu.Lock()
	n.libraryCounts = isCounting(found)
	news := limit != 0 && n.limit != 0 && limit != n.limit
	if limit != 0 {
		n.limit = limit
	}
	n.mu.Unlock()
	s := n.schedule
	if !news || limit == s.MaxPayload() {
		return false, 0, nil
	}
	if s.virtual {
		s.scripts.Store(newVirtualScripts(limit, s.db))
	} else {
		s.scripts.Store(newScripts(limit, s.cluster, s.db))
	}
	return false, limit, nil
}

// nameEvery is the interval of checks of the database's name: FLUSHALL removes it, which costs some questions.
const nameEvery = time.Minute

// nameDatabase tells the function library, which serves all databases, the database of this schedule: its messages
// reach users of another one.
func (n *Node) nameDatabase(ctx context.Context) error {
	if n.schedule.cluster {
		return nil
	}
	key, db := keys.Single.Database(), strconv.Itoa(n.schedule.db)
	named, err := n.server.Get(ctx, key).Result()
	if err == nil && named != db || errors.Is(err, redis.Nil) {
		err = n.server.Set(ctx, key, db, 0).Err()
	}
	if err != nil {
		return fmt.Errorf("schedule: name the database: %w", err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.named = time.Now()
	return nil
}

// Library compares the function library in Redis with this program's, and returns its payload limit in bytes: 0 if it
// tells none.
func (n *Node) Library(ctx context.Context) (state LibraryState, limit int, err error) {
	found, err := n.listLibrary(ctx)
	switch {
	case err != nil:
		return "", 0, err
	case found == nil:
		return LibraryMissing, 0, nil
	case found.Code != n.schedule.scripts.Load().library():
		return LibraryDifferent, limitOf(found), nil
	}
	return LibraryCurrent, limitOf(found), nil
}

// listLibrary returns the function library in Redis with its code, or nil if there is none.
func (n *Node) listLibrary(ctx context.Context) (*redis.Library, error) {
	found, err := n.server.FunctionList(ctx,
		redis.FunctionListQuery{LibraryNamePattern: LibraryName, WithCode: true}).Result()
	if err != nil {
		return nil, fmt.Errorf("schedule: list the function library: %w", err)
	}
	if len(found) == 0 {
		return nil, nil
	}
	return &found[0], nil
}

// PayloadLimit returns the payload limit of the function library in Redis, in bytes; the least one of several, and
// DefaultMaxPayload without a library.
func (s *Schedule) PayloadLimit(ctx context.Context) (int, error) {
	nodes, err := s.Nodes(ctx)
	if err != nil {
		return 0, err
	}
	least := 0
	for _, n := range nodes {
		found, _, err := n.listLibraries(ctx)
		if err != nil {
			return 0, err
		}
		if found == nil {
			continue
		}
		if limit := limitOf(found); limit > 0 && (least == 0 || limit < least) {
			least = limit
		}
	}
	return cmp.Or(least, DefaultMaxPayload), nil
}

// listLibraries returns the function library without its code, or nil if there is none, and the names of all libraries
// that may be timerd's.
func (n *Node) listLibraries(ctx context.Context) (library *redis.Library, names []string, err error) {
	found, err := n.server.FunctionList(ctx, redis.FunctionListQuery{LibraryNamePattern: LibraryName + "*"}).Result()
	if err != nil {
		return nil, nil, fmt.Errorf("schedule: list the function libraries: %w", err)
	}
	for i, l := range found {
		names = append(names, l.Name)
		if l.Name == LibraryName {
			library = &found[i]
		}
	}
	return library, names, nil
}

// limitOf returns the payload limit that a function library states, or 0.
func limitOf(l *redis.Library) int {
	for _, f := range l.Functions {
		var limit int
		if n, _ := fmt.Sscanf(f.Description, limitText, &limit); n == 1 && limit > 0 {
			return limit
		}
	}
	return 0
}

func (n *Node) loadLibrary(ctx context.Context) error {
	current := n.schedule.scripts.Load()
	if err := n.server.FunctionLoadReplace(ctx, current.library()).Err(); err != nil {
		return fmt.Errorf("schedule: load the function library %q: %w", LibraryName, err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.limit, n.libraryCounts = current.maxPayload, true
	return nil
}

// TryLoad loads a library without functions, which always fails and changes nothing. The error is the server's reason
// to load no library, or else that this one has no functions.
func (n *Node) TryLoad(ctx context.Context) error {
	return n.server.FunctionLoad(ctx, "#!lua name="+LibraryName+"_trial\n").Err()
}

// checkVersion returns an error that wraps ErrRedisTooOld and names the version if it is older than 7.0.
func checkVersion(version string) error {
	major, _, _ := strings.Cut(version, ".")
	if n, err := strconv.Atoi(major); err != nil || n < 7 {
		return fmt.Errorf("%w; this server is Redis %s", ErrRedisTooOld, version)
	}
	return nil
}
