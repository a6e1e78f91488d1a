package nemesis

import (
	"context"
	"time"

	"github.com/timerd-io/timerd/torture/internal/history"
)

const (
	// looks is how often Watch asks who is master.
	looks = 250 * time.Millisecond
	// unreplicated is how much of what a master had acknowledged, at most, a failover that nobody
	// ordered loses: servers take each other for dead after 3 s and agree on it after some more.
	unreplicated = 10 * time.Second
)

// Watch notes each change of masters until ctx ends, those too that nobody ordered: on a busy machine
// servers take each other for dead. A history without them would call lost what a failover lost.
func (n *Nemesis) Watch(ctx context.Context) {
	tick := time.NewTicker(looks)
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
			From: at.Add(-unreplicated).UnixMilli(), Healed: at.UnixMilli(),
			Hearing: at.Add(notices + audits).UnixMilli(), Ready: at.UnixMilli(),
		}
		for i := range n.System.Timerds {
			f.Timerds = append(f.Timerds, i)
		}
		n.History.Write(history.Record{Fault: &f})
		n.Log.Info("masters changed", "masters", masters)
	}
}
