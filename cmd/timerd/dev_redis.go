package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/timerd-io/timerd/deploy"
	"github.com/timerd-io/timerd/internal/child"
	"github.com/timerd-io/timerd/internal/ports"
)

const (
	devRedisStart  = 10 * time.Second
	devRedisAnswer = 500 * time.Millisecond // also of whoever else listens on its port
	devRedisGrace  = 3 * time.Second
	devRedisPoll   = 20 * time.Millisecond
)

// errNoRedis tells how to get what dev needs.
var errNoRedis = errors.New(`neither redis-server nor valkey-server is in PATH; timerd dev runs a private one. Install it:
  Debian, Ubuntu  sudo apt-get install redis-server
  Fedora          sudo dnf install valkey
  macOS           brew install redis
in version 7.0 or later; or run timerd serve with the TIMERD_REDIS_URL of one that is elsewhere`)

// devRedis is a private redis-server.
type devRedis struct {
	process *child.Process
	port    int
	log     string // its log file
}

// startDevRedis starts a redis-server with the shipped settings and its data in
// dir, on a port that is free. It returns once the server answers.
func startDevRedis(ctx context.Context, dir string, port int) (*devRedis, error) {
	binary, err := findRedis()
	if err != nil {
		return nil, err
	}
	s := &devRedis{port: port, log: filepath.Join(dir, "redis.log")}
	conf := filepath.Join(dir, "redis.conf")
	text := fmt.Sprintf("%s\nbind 127.0.0.1\nport %d\ndir %q\nlogfile %q\n", deploy.RedisConf(), port, dir, s.log)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(context.WithoutCancel(ctx), binary, conf) // it has to be there until timerd has stopped
	cmd.Dir = dir
	if s.process, err = child.Start(cmd); err != nil {
		return nil, fmt.Errorf("start %s: %w", binary, err)
	}
	if err := s.answers(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("%s on port %d: %w\n%s", binary, port, err, s.said()), s.stop())
	}
	return s, nil
}

// answers waits until the server answers, and no other one in its place: whoever
// else took the port meanwhile is asked which process it is, and nothing more.
func (s *devRedis) answers(ctx context.Context) error {
	rdb := redis.NewClient(&redis.Options{
		Addr: s.addr(), MaxRetries: -1, DialerRetries: 1, ReadTimeout: devRedisAnswer, DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	defer func() { _ = rdb.Close() }()
	ctx, cancel := context.WithTimeout(ctx, devRedisStart)
	defer cancel()
	own := fmt.Sprintf("\r\nprocess_id:%d\r\n", s.process.Pid())
	for {
		said, err := rdb.Info(ctx, "server").Result()
		switch {
		case err == nil && strings.Contains(said, own):
			return nil
		case err == nil:
			err = errors.New("another server has taken the port")
		}
		select {
		case <-s.process.Done():
			return errors.New("it ended at its start")
		case <-ctx.Done():
			return err
		case <-time.After(devRedisPoll):
		}
	}
}

func (s *devRedis) addr() string { return ports.Address(s.port) }

// devRedisURL returns the URL of the server on a port.
func devRedisURL(port int) string { return "redis://" + ports.Address(port) + "/0" }

func (s *devRedis) stop() error { return s.process.Stop(devRedisGrace) }

// said returns the end of the server's log.
func (s *devRedis) said() []byte {
	const most = 2000
	text, err := os.ReadFile(s.log)
	if err != nil {
		return []byte(err.Error())
	}
	return bytes.TrimSpace(text[max(0, len(text)-most):])
}

func findRedis() (string, error) {
	for _, name := range []string{"redis-server", "valkey-server"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", errNoRedis
}

// checkFree returns an error that names the flag if somebody listens on a port of
// 127.0.0.1.
func checkFree(flag string, port int) error {
	l, err := net.Listen("tcp", ports.Address(port))
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("%s=%d is in use; choose another port, or 0 for a free one", flag, port)
	case err != nil:
		return fmt.Errorf("%s=%d: %w", flag, port, err)
	}
	return l.Close()
}
