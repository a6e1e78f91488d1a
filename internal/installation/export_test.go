package installation

import (
	"context"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/notify"
)

// JoinSoon is Join with limits of one second for what does not answer.
func JoinSoon(ctx context.Context, rdb redis.UniversalClient, js jetstream.JetStream, streams notify.Streams, instance string, log *slog.Logger) (*Member, error) {
	return join(ctx, rdb, js, streams, instance, log, limits{time.Second, time.Second, time.Second})
}
