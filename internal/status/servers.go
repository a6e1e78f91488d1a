package status

import (
	"context"
	"sync"
	"time"

	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/schedule"
)

// Server is a Redis server with timers, as it describes itself.
type Server struct {
	Address    string    `json:"address"`
	Error      string    `json:"error,omitempty"` // why the rest is unknown
	Version    string    `json:"version,omitempty"`
	Role       string    `json:"role,omitempty"` // from INFO: master or slave
	Replicas   int64     `json:"replicas"`
	Since      time.Time `json:"since,omitzero"` // its start, by its clock
	Memory     int64     `json:"memory"`         // in bytes
	MaxMemory  int64     `json:"maxmemory"`      // its limit; 0 for none
	Machine    int64     `json:"machinememory"`  // of its machine; 0 if unknown
	AppendOnly bool      `json:"appendonly"`     // it writes an append-only file
	// ClockAhead is the lead of its clock over the one here, in ms; 0 if they agree within the time of the question.
	ClockAhead int64 `json:"clockahead"`
}

// Servers asks the Redis servers with timers to describe themselves. An error of one of them is in its Server.
func Servers(ctx context.Context, s *schedule.Schedule) ([]Server, error) {
	nodes, err := s.Nodes(ctx)
	all := make([]Server, len(nodes))
	var wg sync.WaitGroup
	for i, node := range nodes {
		wg.Go(func() { all[i] = describe(ctx, node) })
	}
	wg.Wait()
	return all, err
}

// describe asks one server.
func describe(ctx context.Context, node *schedule.Node) Server {
	s := Server{Address: node.Server().Options().Addr}
	said, err := node.Server().Info(ctx, "server", "memory", "replication", "persistence").Result()
	if err != nil {
		s.Error = err.Error()
		return s
	}
	before := time.Now()
	at, err := node.Server().Time(ctx).Result()
	if err != nil {
		s.Error = err.Error()
		return s
	}
	info := diag.ParseInfo(said)
	s.Version, s.Role, s.Replicas = clean(info["redis_version"]), clean(info["role"]), info.Number("connected_slaves")
	if valkey := info["valkey_version"]; valkey != "" {
		s.Version = "Valkey " + clean(valkey)
	}
	s.Since = at.Add(-time.Duration(info.Number("uptime_in_seconds")) * time.Second).UTC()
	s.Memory, s.MaxMemory, s.Machine = info.Number("used_memory"), info.Number("maxmemory"),
		info.Number("total_system_memory")
	s.AppendOnly = info["aof_enabled"] == "1"
	s.ClockAhead = diag.ClockAhead(before, time.Now(), at).Milliseconds()
	return s
}
