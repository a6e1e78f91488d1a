package nemesis

import (
	"context"
	"time"

	"github.com/timerd-io/timerd/torture/internal/history"
)

const (
	// lookPause is the interval at which Watch checks the masters.
	lookPause = 250 * time.Millisecond
	// unreplicatedTime is the length of time before an unplanned failover whose acknowledged writes may be lost.
	// Servers take each other for dead after 3 s, and agree on it some time later.
	unreplicatedTime = 10 * time.Second
)

// Watch notes each change of masters until ctx ends, unplanned ones too: on a busy machine servers take each other for
// dead. Without these notes, the checker would blame timerd for the losses of a failover.
func (n *Nemesis) Watch(ctx context.Context) {
	tick := time.NewTicker(lookPause)
	defer tick.Stop()
	for masters := n.System.Redis.MasterNames(ctx); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := n.System.Redis.MasterNames(ctx)
		if now == masters || ctx.Err() != nil {
			continue
		}
		masters = now
		at := time.Now()
		f := history.Fault{
			Kind: "masters changed", Effect: history.Failover, Seen: true,
			From: at.Add(-unreplicatedTime).UnixMilli(), Healed: at.UnixMilli(),
			Hearing: at.Add(noticeTime + auditTime).UnixMilli(), Ready: at.UnixMilli(),
		}
		for i := range n.System.Timerds {
			f.Timerds = append(f.Timerds, i)
		}
		n.History.Write(history.Record{Fault: &f})
		n.Log.Info("masters changed", "masters", masters)
	}
}
