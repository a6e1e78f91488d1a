package doctor_test

import (
	"fmt"
	"testing"

	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/schedule"
)

// Timers in more apps outside the namespaces than are followed are worth a warning; apps within do not count.
func TestAppsThatAreNotFollowed(t *testing.T) {
	t.Parallel()
	rdb := testenv.Redis(t).Client()
	if _, err := schedule.New(rdb, maxPayload).Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	set := func(app string) {
		t.Helper()
		if err := rdb.FCall(t.Context(), "timer_set", []string{app + ":b:c:1"}, "p", "EX", 100).Err(); err != nil {
			t.Fatal(err)
		}
	}
	set("shop") // a namespace
	for i := range 16 {
		set(fmt.Sprint("other", i))
	}
	for _, f := range checkRedis(t, rdb) {
		if f.Check == "apps" {
			t.Errorf("%+v", f)
		}
	}
	set("one-more")
	findings := checkRedis(t, rdb)
	wants(t, findings, "apps", diag.Warn, "17 apps outside app1:trans,shop; of all but 16", "TIMERD_NAMESPACES")
}
