package core_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/devserver"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/test/system"
)

func TestMainPathAsTheLeastPrivilegedUser(t *testing.T) {
	t.Parallel()
	s := system.New(t, devserver.ACL(system.LeastPrivileged(t)))
	s.Env["TIMERD_REDIS_URL"] = s.Redis.UserURL("timerd", "secret", 0)
	p := s.Start()
	c := s.Collect()
	s.Do("SET", "app1:b:c:plain", "p", "PX", system.Soon)
	producer := s.Redis.Client(func(o *redis.Options) { o.Username, o.Password = "producer", "secret" })
	if err := producer.FCall(t.Context(), "timer_set", []string{"app1:b:c:set"}, "s", "PX", 300).Err(); err != nil {
		t.Fatal(err)
	}
	if err := producer.FCall(t.Context(), "timer_set", []string{"app1:b:c:no"}, "s", "PX", 60000).Err(); err != nil {
		t.Fatal(err)
	}
	if got := producer.FCall(t.Context(), "timer_cancel", []string{"app1:b:c:no"}).Val(); got != "cancelled" {
		t.Errorf("timer_cancel: %v", got)
	}
	if err := producer.FCallRO(t.Context(), "timer_get", []string{"app1:b:c:no"}).Err(); !errors.Is(err, redis.Nil) {
		t.Errorf("timer_get: %v", err)
	}
	if err := producer.FlushDB(t.Context()).Err(); err == nil {
		t.Error("the producer may flush the database")
	}
	s.Expect(c, "app1:b:c:plain=p", "app1:b:c:set=s")
	s.Says(0, "hold app1", "app1 held")
	if err := producer.FCall(t.Context(), "timer_set", []string{"app1:b:c:held"}, "h", "PX", 100).Err(); err != nil {
		t.Fatal(err)
	}
	s.Holds("app1", 1)
	if got := producer.FCallRO(t.Context(), "timer_get", []string{"app1:b:c:held"}).Val(); !strings.Contains(
		fmt.Sprint(got), "state held") {
		t.Errorf("timer_get: %v", got)
	}
	s.Says(0, "resume app1 --shift", "app1 resumed")
	s.Says(0, "audit", " audited in ")
	s.Expect(c, "app1:b:c:plain=p", "app1:b:c:set=s", "app1:b:c:held=h")
	s.Settled()
	p.Stop()
	if strings.Contains(p.Log.String(), "NOPERM") {
		t.Errorf("timerd was refused something:\n%s", p.Log)
	}
	testenv.Lacks(t, p.Log.String(), "secret")
}
