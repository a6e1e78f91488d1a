package redisserver

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
)

// BinaryEnv names the environment variable that picks the server binary, for running the tests
// against another Redis version or Valkey.
const BinaryEnv = "TIMERD_TEST_REDIS_SERVER"

// Binary finds the server to test with: what BinaryEnv names, else redis-server, else
// valkey-server, from PATH or from where packages put them.
func Binary() (string, error) {
	if name := os.Getenv(BinaryEnv); name != "" {
		path, err := exec.LookPath(name)
		if err != nil {
			return "", fmt.Errorf("redisserver: %s: %w", BinaryEnv, err)
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
	return "", errors.New("redisserver: no redis-server and no valkey-server found; the tests need a real one: " +
		"run `make deps`, or set " + BinaryEnv + " to the binary")
}
