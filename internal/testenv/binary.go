package testenv

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
)

// RedisServerEnv names the environment variable that picks the server binary, for running the tests
// against another Redis version or Valkey.
const RedisServerEnv = "TIMERD_TEST_REDIS_SERVER"

// redisBinary finds the server to test with: what RedisServerEnv names, else redis-server, else
// valkey-server, from PATH or from where packages put them.
func redisBinary() (string, error) {
	if name := os.Getenv(RedisServerEnv); name != "" {
		path, err := exec.LookPath(name)
		if err != nil {
			return "", fmt.Errorf("testenv: %s: %w", RedisServerEnv, err)
		}
		return path, nil
	}
	for _, name := range []string{
		"redis-server", "valkey-server",
		"/usr/bin/redis-server", "/usr/local/bin/redis-server",
		"/usr/bin/valkey-server", "/usr/local/bin/valkey-server",
	} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", errors.New("testenv: no redis-server and no valkey-server found; the tests need a real one: " +
		"run `make deps`, or set " + RedisServerEnv + " to the binary")
}
