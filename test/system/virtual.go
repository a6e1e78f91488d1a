package system

import (
	"regexp"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/internal/travel"
	"github.com/timerd-io/timerd/schedule"
)

// Virtual is a System whose one timerd is a timerd dev --virtual, with servers of its own: Redis and NATS are nil. Its
// clock of due times moves by Advance, and as time passes.
type Virtual struct {
	*System
	Timerd *Daemon
	clock  travel.Clock
}

var (
	exported  = regexp.MustCompile(`(?m)^  export (TIMERD_[A-Z_]+)='?([^'\n]+)'?$`)
	metricsAt = regexp.MustCompile(`(?m)^Metrics are at http://([^/]+)/`)
)

// NewVirtual starts a timerd dev --virtual, which ends with t, as an operator ends it. Settings are "NAME=value".
func NewVirtual(t testing.TB, settings ...string) *Virtual {
	t.Helper()
	v := &Virtual{System: &System{T: t, Env: map[string]string{"TMPDIR": t.TempDir()}}}
	v.Timerd = v.LaunchCommand([]string{"dev", "--virtual", "--console-addr", "off"}, settings...)
	t.Cleanup(v.Timerd.Stop)
	v.Timerd.Log.Wait(t, Patience, "Each firing")
	said := v.Timerd.Log.String()
	for _, variable := range exported.FindAllStringSubmatch(said, -1) {
		v.Env[variable[1]] = variable[2]
	}
	v.Timerd.Addr = metricsAt.FindStringSubmatch(said)[1]

	options, err := redis.ParseURL(v.Env["TIMERD_REDIS_URL"])
	if err != nil {
		t.Fatal(err)
	}
	v.RDB = redis.NewClient(options)
	nc, err := nats.Connect(v.Env["TIMERD_NATS_URL"])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		nc.Close()
		_ = v.RDB.Close() // nothing is pending on it
	})
	if v.JS, err = jetstream.New(nc); err != nil {
		t.Fatal(err)
	}
	v.clock = travel.Clock{Schedule: schedule.NewVirtual(v.RDB, schedule.DefaultMaxPayload), JetStream: v.JS,
		Wait: Patience}
	return v
}

// Now returns the virtual time in unix ms.
func (v *Virtual) Now() int64 {
	v.T.Helper()
	now, err := v.clock.Now(v.T.Context())
	if err != nil {
		v.T.Fatal(err)
	}
	return now.UnixMilli()
}

// Advance moves the clock, from each due time on the way to the next. It returns once all has come to rest.
func (v *Virtual) Advance(by time.Duration) {
	v.T.Helper()
	now, err := v.clock.Now(v.T.Context())
	if err == nil {
		err = v.clock.AdvanceTo(v.T.Context(), now.Add(by))
	}
	if err != nil {
		v.T.Fatal(err)
	}
}

// Retry is System.Retry, by the virtual clock.
func (v *Virtual) Retry(m testenv.Message, headers ...string) (from, to time.Time) {
	v.T.Helper()
	from = time.UnixMilli(v.Now())
	v.System.Retry(m, headers...)
	return from, time.UnixMilli(v.Now())
}
