package streams

import (
	"context"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
)

// JoinSoon is Join with limits of one second for missing answers.
func JoinSoon(ctx context.Context, rdb redis.UniversalClient, js jetstream.JetStream, streams Config, instance string,
	log *slog.Logger) (*Member, error) {
	return join(ctx, rdb, js, streams, instance, log, limits{time.Second, time.Second, time.Second})
}

// Look is one look of Run.
func (l *Losses) Look(ctx context.Context) error { return l.look(ctx) }

// Owners returns whose the streams are.
func Owners(ctx context.Context, js jetstream.JetStream, streams Config) ([]Owner, error) {
	return ownersOf(ctx, js, streams.configs()...)
}

// BatchesAt is TakesBatches for a server of a version.
func BatchesAt(version string) bool { return batchesAt(version) }

// KeepsWriteErrors reports whether a server of a version keeps write errors.
func KeepsWriteErrors(version string) bool { return keepsWriteErrors(version) }
