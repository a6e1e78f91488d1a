package devserver

import (
	"errors"
	"fmt"
	"os/exec"
	"strings"
)

// BinaryEnv names the environment variable with which tests and torture pick another server program: another version of
// Redis, or Valkey. They pass its value to [Binary]; this package does not read it.
const BinaryEnv = "TIMERD_TEST_REDIS_SERVER"

// ErrNoRedis means that PATH has neither a redis-server nor a valkey-server.
var ErrNoRedis = errors.New("neither redis-server nor valkey-server is in PATH")

// FindRedis returns the path of redis-server, or else of valkey-server, from PATH. Its error is [ErrNoRedis].
func FindRedis() (string, error) {
	for _, name := range []string{"redis-server", "valkey-server"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", ErrNoRedis
}

// RedisOption changes how a server is started.
type RedisOption func(*Redis)

// Binary picks the program: a path, or a name in PATH. "" is the default: the result of [FindRedis].
func Binary(name string) RedisOption { return func(s *Redis) { s.binary = name } }

// Directory makes the server put its working directory into parent, instead of the system's directory for temporary
// files.
func Directory(parent string) RedisOption { return func(s *Redis) { s.parent = parent } }

// Port makes the server listen on this port and on no other one. By default the port is a free one.
func Port(port int) RedisOption { return func(s *Redis) { s.port = port } }

// Directive sets one directive of redis.conf: Directive("hz", "100"). The last one wins over deploy/redis.conf and over
// earlier options. Relative paths are relative to [Redis.Dir].
func Directive(name string, values ...string) RedisOption {
	return func(s *Redis) { s.directives = append(s.directives, directive(name, values...)) }
}

// ACL gives the server an ACL file with this content. Connect with a URL that names a user; the default user may be
// off.
func ACL(content string) RedisOption { return func(s *Redis) { s.acl = content } }

// directive formats one line of redis.conf; every value is quoted, so it may hold spaces and be empty.
func directive(name string, values ...string) string {
	var b strings.Builder
	b.WriteString(name)
	for _, v := range values {
		fmt.Fprintf(&b, " %q", v)
	}
	return b.String()
}

// AsSentinel starts the program as a sentinel, which has no configuration but its directives.
func AsSentinel() RedisOption { return func(s *Redis) { s.sentinel = true } }

// Environment gives the server further environment variables, NAME=value each.
func Environment(variables ...string) RedisOption {
	return func(s *Redis) { s.variables = append(s.variables, variables...) }
}
