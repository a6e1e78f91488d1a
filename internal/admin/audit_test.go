package admin_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/admin"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/schedule"
)

// An audit that is under way when another caller asks for one ends with that one: the timerd tells only of the newer
// one from then on.
func TestAuditReplacedWhileUnderWay(t *testing.T) {
	s := schedule.New(testenv.Redis(t).Client(), 1000)
	if _, err := s.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	nodes, err := s.Nodes(t.Context())
	if err == nil {
		_, err = nodes[0].Heartbeat(t.Context(), schedule.Self{Instance: "test", Version: "v0", Since: time.Now()},
			time.Hour)
	}
	if err != nil {
		t.Fatal(err)
	}
	node := nodes[0].Name()
	tell := func(id string, p schedule.AuditProgress) {
		t.Helper()
		if err := s.TellAudit(t.Context(), node, id, p); err != nil {
			t.Fatal(err)
		}
	}
	type result struct {
		all []admin.Audited
		err error
	}
	begun, ended := make(chan struct{}), make(chan result, 1)
	begin := sync.OnceFunc(func() { close(begun) })
	go func() {
		all, err := admin.Audit(context.WithoutCancel(t.Context()), s, func(all []admin.Audited) {
			if all[0].Doing != "" {
				begin()
			}
		})
		ended <- result{all, err}
	}()
	first := ""
	testenv.Eventually(t, time.Minute, func() bool {
		seen, err := s.AskedAudits(t.Context())
		first = seen.Of(node)
		return err == nil && first != ""
	}, "the request")
	tell(first, schedule.AuditProgress{Instance: "test", Beat: 1, Doing: "comparing"})
	<-begun
	if err := s.AskAudit(t.Context(), node, "newer"); err != nil {
		t.Fatal(err)
	}
	tell("newer", schedule.AuditProgress{Instance: "test", Beat: 2, Done: true,
		Outcome: schedule.AuditOutcome{Timers: 3}})
	if got := <-ended; got.err != nil || len(got.all) != 1 || !got.all[0].Done || got.all[0].Outcome.Timers != 3 {
		t.Errorf("%+v, %v; want the result of the newer audit", got.all, got.err)
	}
}
