package core_test

import (
	"strings"
	"testing"

	"github.com/timerd-io/timerd/test/system"
)

func TestHealthOfATimerd(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	p := s.Start()
	s.Env["TIMERD_HTTP_ADDR"] = p.Addr
	if out := s.OK("health"); out != "ready\n" {
		t.Errorf("health: %s", out)
	}
	s.Redis.Stop()
	p.AwaitReady(false)
	if code, out, errs := s.Run("", "health"); code != 1 || out != "" || !strings.Contains(errs, "\nredis: ") {
		t.Errorf("health without Redis: %d %s%s", code, out, errs)
	}
}
