package listener

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/testenv"
)

// BenchmarkMessages reads 100 messages an operation from Redis: with pushConn, or with go-redis alone. The publisher's
// part is the same in both.
func BenchmarkMessages(b *testing.B) {
	const batch = 100
	payload := strings.Repeat("x", 30)
	publisher := testenv.Redis(b).Client()
	for _, way := range []string{"taken out", "go-redis"} {
		b.Run(way, func(b *testing.B) {
			left, done := batch, make(chan struct{})
			one := func() {
				if left--; left == 0 {
					left = batch
					done <- struct{}{}
				}
			}
			options := *publisher.Options()
			if way == "taken out" {
				dial := options.Dialer
				options.Dialer = func(ctx context.Context, network, address string) (net.Conn, error) {
					c, err := dial(ctx, network, address)
					return &pushConn{lag: func() time.Duration { return 0 }, Conn: c, caughtUp: func() {},
						receive: func([]byte, []byte) error { one(); return nil }}, err
				}
			}
			client := redis.NewClient(&options)
			defer func() { _ = client.Close() }()
			sub := client.Subscribe(b.Context(), "c")
			defer func() { _ = sub.Close() }()
			if _, err := sub.Receive(b.Context()); err != nil {
				b.Fatal(err)
			}
			go func() {
				for {
					if _, err := sub.ReceiveMessage(b.Context()); err != nil {
						return
					}
					one()
				}
			}()
			b.ReportAllocs()
			for b.Loop() {
				pipe := publisher.Pipeline()
				for range batch {
					pipe.Publish(b.Context(), "c", payload)
				}
				if _, err := pipe.Exec(b.Context()); err != nil {
					b.Fatal(err)
				}
				<-done
			}
		})
	}
}
