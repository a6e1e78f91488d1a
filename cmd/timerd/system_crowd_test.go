package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/redisserver"
	"github.com/timerd-io/timerd/internal/testenv"
)

// With an ACL that names some apps, the timers of another one wait for nobody's harm: those of the others fire on time,
// plain keys are adopted, retries are not lost. The app's own fire too, each once.
func TestKeysBeyondTimerdsRights(t *testing.T) {
	t.Parallel()
	const bad, good = 2000, 200
	acl := strings.Replace(leastPrivileged(t), "user timerd on >secret ~* ", "user timerd on >secret ~good:* ~timerd:* ", 1)
	s := newSystem(t, redisserver.ACL(acl))
	s.env["TIMERD_REDIS_URL"] = s.redis.UserURL("timerd", "secret", 0)
	s.env["TIMERD_RETRY"] = "*=100ms"
	p := s.start()
	c := s.collect()
	var want []string
	set := func(app string, n int, at int64) {
		if _, err := s.rdb.Pipelined(t.Context(), func(pipe redis.Pipeliner) error {
			for i := range n {
				key := fmt.Sprintf("%s:b:c:%d", app, i)
				pipe.FCall(t.Context(), "timer_set", []string{key}, "p", "PXAT", at)
				want = append(want, key+"=p")
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	due := s.now() + 2000
	set("bad", bad, due)
	set("good", good, due+500)
	s.do("SET", "bad:b:plain:1", "p", "PXAT", due+500)
	want = append(want, "bad:b:plain:1=<missing>") // its value is beyond timerd's rights
	s.do("SET", "good:b:plain:1", "p", "PXAT", due+500)
	s.adopted("good:b:plain:1")
	want = append(want, "good:b:plain:1=p")
	all := s.expect(c, want...)
	var late []time.Duration
	for _, e := range all {
		if e.Key.App == "good" {
			late = append(late, e.Time.Sub(e.Due))
		}
	}
	slices.Sort(late)
	t.Logf("beside %d timers that timerd may not read: p50 %v, p99 %v", bad, late[len(late)/2], late[len(late)*99/100])
	if worst := late[len(late)-1]; worst > 5*time.Second {
		t.Errorf("a timer fired %v late", worst)
	}

	fired := c.All()
	i := slices.IndexFunc(fired, func(m testenv.Message) bool { return strings.HasSuffix(m.Subject, ".bad.b.c") })
	s.retry(fired[i])
	s.noRequests()
	again := c.Wait(len(want)+1, patience)
	if m := again[len(want)]; m.Subject != fired[i].Subject || !strings.HasSuffix(m.ID(), ".2") {
		t.Errorf("the retry fired as %s on %s", m.ID(), m.Subject)
	}
	s.settled()
	if _, body, err := p.get("/metrics"); err != nil || strings.Contains(body, `timerd_set_aside_total{reason="rights"} 0`) {
		t.Errorf("nothing was counted as set aside: %v", err)
	}
	if log := p.log.String(); strings.Count(log, "timers of this app are set aside") != 1 || !strings.Contains(log, "key=bad:") {
		t.Errorf("the log tells of it not once:\n%s", log)
	}
}
