package admin_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/admin"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// A master at a distance of 100 ms is not silent: its partitions take 22 answers, over two seconds for a copy of the
// list and for a look, and a hold and a resume wait for them.
func TestClusterHoldsOnADistantMaster(t *testing.T) {
	t.Parallel()
	cluster := testenv.Cluster(t, 3, false)
	distant := cluster.Nodes[1]
	way := testenv.NewProxy(t, distant.Addr())
	client := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{cluster.Nodes[0].Addr()},
		Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			if addr == distant.Addr() {
				addr = way.Addr()
			}
			return new(net.Dialer).DialContext(ctx, network, addr)
		},
	})
	t.Cleanup(func() { _ = client.Close() })
	s := schedule.New(client, schedule.DefaultMaxPayload)
	if _, err := s.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i := range 30 {
		if err := client.FCall(t.Context(), "timer_set", []string{fmt.Sprint("shop:m:t:", i)}, "p", "PX",
			10).Err(); err != nil {
			t.Fatal(err)
		}
	}
	holds := admin.NewHolds(s)
	holds.Logger = slog.New(slog.DiscardHandler)
	shop := keys.Namespace{App: "shop"}
	way.Delay(50 * time.Millisecond) // each way

	// A busy machine may take longer than a hold waits. Tried again, it succeeds; a master that is given up for the
	// time of all its answers is given up each time.
	testenv.Eventually(t, time.Minute, func() error {
		held, err := holds.Hold(t.Context(), schedule.Hold{Namespace: shop}, 0)
		if err == nil && len(held.Missing) > 0 {
			err = fmt.Errorf("missing: %q", held.Missing)
		}
		return err
	}, "the hold to be everywhere")
	testenv.Eventually(t, time.Minute, func() error {
		err := holds.Resume(t.Context(), shop, schedule.Resume{Kind: schedule.ResumeNow}, func(admin.ResumeProgress) {})
		if errors.Is(err, admin.ErrNotHeld) {
			return nil
		}
		return err
	}, "the resume to release all")
}
