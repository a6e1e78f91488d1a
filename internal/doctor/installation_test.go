package doctor_test

import (
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/doctor"
	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
)

func TestInstallation(t *testing.T) {
	t.Parallel()
	rdb, js := testenv.Redis(t).Client(), testenv.NATS(t).JetStream()
	check := func() []diag.Finding {
		t.Helper()
		return doctor.NewNATS(js, streams.Config{}, maxPayload).CheckInstallation(t.Context(), rdb)
	}
	belongs := func(id string) {
		t.Helper()
		if err := rdb.Set(t.Context(), keys.Installation, id, 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	wants(t, check(), "", diag.OK, "none yet")

	if err := streams.Ensure(t.Context(), js, streams.Config{}); err != nil {
		t.Fatal(err)
	}
	belongs("A")
	wants(t, check(), "", diag.Warn, "TIMERS, TIMERS_RETRY, TIMERS_DEAD: not marked", "$JS.API.STREAM.UPDATE.*")

	for _, stream := range []string{"TIMERS", "TIMERS_RETRY", "TIMERS_DEAD"} {
		if err := streams.SetOwner(t.Context(), js, streams.Owner{Stream: stream, Installation: "A"}); err != nil {
			t.Fatal(err)
		}
	}
	wants(t, check(), "", diag.OK, "A, in Redis and the streams")

	belongs("B")
	findings := check()
	wants(t, findings, "", diag.Fail, `TIMERS: it belongs to installation "A", and the Redis of this timerd to "B"`,
		"timerd doctor --adopt-streams")
	if len(findings) != 3 {
		t.Errorf("findings %+v, want one for each stream", findings)
	}
	if err := rdb.Del(t.Context(), keys.Installation).Err(); err != nil {
		t.Fatal(err)
	}
	wants(t, check(), "", diag.Warn, `this Redis has no identity, and the streams belong to installation "A"`)
}

// A right that no timerd needs is requested, and its absence fails nothing.
func TestInstallationWithoutTheRightToTheLogOfDeliveries(t *testing.T) {
	t.Parallel()
	rdb, js := testenv.Redis(t).Client(), testenv.NATS(t, func(o *server.Options) {
		o.Users = []*server.User{{Username: "u", Password: "x", Permissions: &server.Permissions{
			Publish: &server.SubjectPermission{Allow: []string{">"},
				Deny: []string{"$JS.API.STREAM.INFO.TIMERS_DELIVERY"}},
		}}}
		o.NoAuthUser = "u"
	}).JetStream()
	findings := doctor.NewNATS(js, streams.Config{}, maxPayload).CheckInstallation(t.Context(), rdb)
	wants(t, findings, "", diag.Warn, "cannot find the owner of the log of deliveries",
		"$JS.API.STREAM.INFO.TIMERS_DELIVERY")
	if len(findings) != 1 {
		t.Errorf("findings %+v", findings)
	}
}
