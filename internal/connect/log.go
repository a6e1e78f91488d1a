package connect

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
)

// RedisLogger takes the log lines of go-redis, for redis.SetLogger. It is never the only report of an error: a failed
// command returns one.
type RedisLogger struct{ Logger *slog.Logger }

// Printf logs at level debug.
func (l RedisLogger) Printf(_ context.Context, format string, args ...any) {
	l.Logger.Debug(strings.TrimSpace(fmt.Sprintf(format, args...)), "source", "go-redis")
}
