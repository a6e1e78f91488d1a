package query

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// Audits returns the reports of the timerds' last audits of each node.
func Audits(ctx context.Context, s *schedule.Schedule) ([]schedule.AuditReport, error) {
	var found *redis.MapStringStringCmd
	err := s.Pipelined(ctx, keys.Single, func(pipe redis.Pipeliner) error {
		found = pipe.HGetAll(ctx, keys.Single.Audits())
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("schedule: read the reports of audits: %w", err)
	}
	reports := make([]schedule.AuditReport, 0, len(found.Val()))
	for field, text := range found.Val() {
		var r schedule.AuditReport
		if json.Unmarshal([]byte(text), &r) != nil {
			continue // from another version of timerd
		}
		r.Node, r.Instance, _ = strings.Cut(field, " ")
		reports = append(reports, r)
	}
	return reports, nil
}
