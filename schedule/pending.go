package schedule

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/timerd-io/timerd/keys"
)

// listPage is how many entries one step of a listing reads. Records come with
// their payloads, so it is kept small.
const listPage = 100

// Pending is a timer that waits for its due time.
type Pending struct {
	Key     keys.Key
	Due     time.Time
	Attempt int // timerd's own count; 0 means that the payload says it, or 1
	Status  Status
	Payload []byte
}

// List calls yield for the pending timers of a namespace in the order of their
// due times, until it returns false. Timers that are set, moved or fired
// meanwhile may be left out or come twice.
func (s *Schedule) List(ctx context.Context, p keys.Partition, n keys.Namespace, yield func(Pending) bool) error {
	for start := int64(0); ; start += listPage {
		entries, err := s.rdb.ZRangeWithScores(ctx, p.Due(), start, start+listPage-1).Result()
		if err != nil {
			return fmt.Errorf("schedule: list pending timers: %w", err)
		}
		var found []Pending
		var members []string
		for _, e := range entries {
			member, _ := e.Member.(string)
			key, err := keys.Parse(member)
			if err != nil || !n.Match(key) {
				continue
			}
			members = append(members, member)
			found = append(found, Pending{Key: key, Due: time.UnixMilli(int64(e.Score))})
		}
		if len(found) > 0 {
			records, err := s.rdb.HMGet(ctx, p.Data(), members...).Result()
			if err != nil {
				return fmt.Errorf("schedule: list pending timers: %w", err)
			}
			for i, r := range records {
				record, ok := r.(string)
				if !ok {
					continue
				}
				header, payload, _ := strings.Cut(record, ":")
				flags := strings.TrimLeft(header, "0123456789")
				found[i].Attempt, _ = strconv.Atoi(strings.TrimSuffix(header, flags))
				if found[i].Status = statusOf(flags); found[i].Status == PayloadPresent {
					found[i].Payload = []byte(payload)
				}
				if !yield(found[i]) {
					return nil
				}
			}
		}
		if len(entries) < listPage {
			return nil
		}
	}
}
