package connect

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
)

// RedisLogger passes on what go-redis logs, for redis.SetLogger. None of it is an error of its own: a
// command that fails returns one.
type RedisLogger struct{ Logger *slog.Logger }

// Printf logs at level debug.
func (l RedisLogger) Printf(_ context.Context, format string, args ...any) {
	l.Logger.Debug(strings.TrimSpace(fmt.Sprintf(format, args...)), "source", "go-redis")
}
