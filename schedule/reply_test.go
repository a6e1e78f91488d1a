package schedule_test

import (
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/schedule"
)

// A command without a reply, as in a pipeline with a broken connection, is reported as such.
func TestNoReply(t *testing.T) {
	t.Parallel()
	if _, err := schedule.ReadReply(redis.NewCmd(t.Context()), 0, 0); err == nil ||
		!strings.Contains(err.Error(), "no reply") {
		t.Errorf("got %v", err)
	}
}
