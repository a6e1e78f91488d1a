package schedule

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// LibraryState is how the function library in Redis compares with this program's.
type LibraryState string

// The states of the function library.
const (
	LibraryMissing   LibraryState = "missing"
	LibraryDifferent LibraryState = "different" // of another version or payload limit
	LibraryCurrent   LibraryState = "current"
)

// Load checks the version of every server and puts this program's function library in place, replacing another version
// of it. It returns an error that wraps ErrRedisTooOld for a server that lacks functions.
func (s *Schedule) Load(ctx context.Context) error {
	nodes, err := s.Nodes(ctx)
	if err != nil {
		return err
	}
	for _, n := range nodes {
		if err := n.load(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (n *Node) load(ctx context.Context) error {
	info, err := n.server.Info(ctx, "server").Result()
	if err != nil {
		return fmt.Errorf("schedule: read the server's version: %w", err)
	}
	if err := checkVersion(infoField(info, "redis_version")); err != nil {
		return err
	}
	state, err := n.Library(ctx)
	if err != nil {
		return err
	}
	if state == LibraryCurrent {
		return nil
	}
	return n.loadLibrary(ctx)
}

// EnsureLibrary loads the function library if it is missing, as after FUNCTION FLUSH, and tells whether it did. Another
// version stays: it belongs to a timerd that started later.
func (n *Node) EnsureLibrary(ctx context.Context) (loaded bool, err error) {
	found, err := n.server.FunctionList(ctx, redis.FunctionListQuery{LibraryNamePattern: LibraryName}).Result()
	if err != nil {
		return false, fmt.Errorf("schedule: list the function library: %w", err)
	}
	if len(found) > 0 {
		return false, nil
	}
	return true, n.loadLibrary(ctx)
}

// Library compares the function library in Redis with this program's.
func (n *Node) Library(ctx context.Context) (LibraryState, error) {
	found, err := n.server.FunctionList(ctx, redis.FunctionListQuery{LibraryNamePattern: LibraryName, WithCode: true}).Result()
	switch {
	case err != nil:
		return "", fmt.Errorf("schedule: list the function library: %w", err)
	case len(found) == 0:
		return LibraryMissing, nil
	case found[0].Code != n.schedule.scripts.library:
		return LibraryDifferent, nil
	}
	return LibraryCurrent, nil
}

func (n *Node) loadLibrary(ctx context.Context) error {
	if err := n.server.FunctionLoadReplace(ctx, n.schedule.scripts.library).Err(); err != nil {
		return fmt.Errorf("schedule: load the function library %q: %w", LibraryName, err)
	}
	return nil
}

// checkVersion returns an error that wraps ErrRedisTooOld and names the version if it is older than 7.0.
func checkVersion(version string) error {
	major, _, _ := strings.Cut(version, ".")
	if n, err := strconv.Atoi(major); err != nil || n < 7 {
		return fmt.Errorf("%w; this server is Redis %s", ErrRedisTooOld, version)
	}
	return nil
}

// infoField returns one field of an INFO reply.
func infoField(info, name string) string {
	for line := range strings.Lines(info) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
