package deliver_test

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/backoff"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/test/system"
)

// crowdVariable sets the size of TestDeliverCrowd: hosts, dead ones among them, deliveries a second, seconds, and the
// timeout of a call.
//
//	TIMERD_TEST_CROWD=10000,1000,2000,180,15s go test ./test/system/deliver -run TestDeliverCrowd -v -timeout 30m
const crowdVariable = "TIMERD_TEST_CROWD"

// crowd is many hosts on one port of 127.0.0.0/8. The first of them are dead: they let calls hang.
type crowd struct {
	t     testing.TB
	hosts int
	dead  atomic.Int64
	port  int
	slots []atomic.Int64 // calls of each host

	mu    sync.Mutex
	late  []time.Duration // of deliveries to living hosts
	ended int

	sent int // timers
}

func newCrowd(t testing.TB, hosts, dead int) *crowd {
	t.Helper()
	l, err := net.Listen("tcp4", ":0")
	if err != nil {
		t.Fatal(err)
	}
	c := &crowd{t: t, hosts: hosts, port: l.Addr().(*net.TCPAddr).Port, slots: make([]atomic.Int64, hosts)}
	c.dead.Store(int64(dead))
	server := &http.Server{Handler: c, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	return c
}

func (c *crowd) url(host int) string {
	n := host + 1
	return fmt.Sprintf("http://127.%d.%d.%d:%d/", 1+n>>16, n>>8&255, n&255, c.port)
}

func (c *crowd) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	now := time.Now()
	var a, b, d int
	if _, err := fmt.Sscanf(r.Host, "127.%d.%d.%d:", &a, &b, &d); err != nil {
		c.t.Errorf("host %s: %v", r.Host, err)
		return
	}
	host := (a-1)<<16 + b<<8 + d - 1
	c.slots[host].Add(1)
	var payload struct {
		Due int64 `json:"due"`
	}
	if err := json.NewDecoder(r.Body).Decode(&payload); err != nil {
		return // the other side is gone
	}
	if int64(host) < c.dead.Load() {
		<-r.Context().Done()
		return
	}
	w.WriteHeader(http.StatusNoContent)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended++
	c.late = append(c.late, now.Sub(time.UnixMilli(payload.Due)))
}

// run has timers fire at a rate for some seconds, spread over the hosts from the given one on, and waits until all of
// living hosts have arrived. It returns how late these were.
func (c *crowd) run(s *system.System, round string, from, rate, seconds int) (median, p99, worst time.Duration) {
	c.t.Helper()
	c.mu.Lock()
	c.late, c.ended = nil, 0
	c.mu.Unlock()
	living := 0
	began := time.Now().Add(500 * time.Millisecond)
	total := rate * seconds
	for i := 0; i < total; {
		pipe := s.RDB.Pipeline()
		for until := min(i+max(rate/20, 1), total); i < until; i++ {
			host := from + (i*7919)%(c.hosts-from)
			c.sent++
			if int64(host) >= c.dead.Load() {
				living++
			}
			due := began.Add(time.Duration(i) * time.Second / time.Duration(rate)).Add(time.Second).UnixMilli()
			in := max(due-time.Now().UnixMilli(), 1) // more than nothing on a machine that cannot keep up
			pipe.Do(c.t.Context(), "FCALL", "timer_set", 1, fmt.Sprintf("pay:order:callback:%s-%d", round, i),
				fmt.Sprintf(`{"url":%q,"due":%d}`, c.url(host), due), "PX", in)
		}
		if _, err := pipe.Exec(c.t.Context()); err != nil {
			c.t.Fatal(err)
		}
		// the rate
		backoff.Sleep(c.t.Context(), time.Until(began.Add(time.Duration(i)*time.Second/time.Duration(rate))))
	}
	testenv.Eventually(c.t, 2*system.Patience, func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.ended < living {
			return fmt.Errorf("%d of %d arrived", c.ended, living)
		}
		return nil
	}, "deliveries to living hosts")
	c.mu.Lock()
	defer c.mu.Unlock()
	slices.Sort(c.late)
	return c.late[len(c.late)/2], c.late[len(c.late)*99/100], c.late[len(c.late)-1]
}

// value returns a metric of a process.
func value(p *system.Daemon, name string) (value float64) {
	p.T.Helper()
	_, metrics, err := p.Get("/metrics")
	if err != nil {
		p.T.Fatal(err)
	}
	for line := range strings.SplitSeq(metrics, "\n") {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			_, _ = fmt.Sscan(rest, &value)
		}
	}
	return value
}

// Hosts that let calls hang do not delay answering ones.
func TestDeliverCrowd(t *testing.T) {
	t.Parallel()
	hosts, dead, rate, seconds, timeout := 300, 30, 150, 15, "25s"
	if size := os.Getenv(crowdVariable); size != "" {
		if _, err := fmt.Sscanf(strings.ReplaceAll(size, ",", " "), "%d %d %d %d %s", &hosts, &dead, &rate, &seconds,
			&timeout); err != nil {
			t.Fatalf("%s=%s: %v", crowdVariable, size, err)
		}
	}
	s := system.New(t)
	s.Start("TIMERD_RETRY=*=exp(2s,2,1h,12)")
	file := system.Webhooks(t, "pay {data.url}")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, append(text, "  body: data\n  timeout: "+timeout+"\n"...), 0o600); err != nil {
		t.Fatal(err)
	}
	p := s.Deliverer(file)
	c := newCrowd(t, hosts, dead)

	median, p99, worst := c.run(s, "alone", dead, rate*(hosts-dead)/hosts, seconds)
	t.Logf("without dead hosts: late by %v, p99 %v, at most %v; %.0f MB, %.1f s of CPU", median, p99, worst,
		value(p, "process_resident_memory_bytes")/1e6, value(p, "process_cpu_seconds_total"))
	deadMedian, deadP99, deadWorst := c.run(s, "dead", 0, rate, seconds)
	t.Logf("with %d dead of %d: late by %v, p99 %v, at most %v; %.0f MB, %.1f s of CPU, %v circuits open", dead, hosts,
		deadMedian, deadP99, deadWorst,
		value(p, "process_resident_memory_bytes")/1e6, value(p, "process_cpu_seconds_total"),
		value(p, "timerd_circuit_open"))
	if length, err := time.ParseDuration(timeout); err != nil || deadWorst > max(length/2, worst+time.Second) {
		t.Errorf("with dead hosts, whose calls take %s (%v), one was late by %v, without by %v at most", timeout, err,
			deadWorst, worst)
	}
	most := int64(0)
	for i := range dead {
		most = max(most, c.slots[i].Load())
	}
	t.Logf("the dead hosts got at most %d calls each", most)
	if size := os.Getenv(crowdVariable); size != "" {
		c.recover(s, p)
	}
	p.Stop()
}

// recover has all hosts answer, and waits until everything that was held back has arrived.
func (c *crowd) recover(s *system.System, p *system.Daemon) {
	before := value(p, "process_resident_memory_bytes")
	c.dead.Store(0)
	began := time.Now()
	testenv.Eventually(c.t, 30*time.Minute, func() error {
		due, firing := s.Do("ZCARD", keys.Single.Due()), s.Do("ZCARD", keys.Single.Firing())
		if due != int64(0) || firing != int64(0) {
			return fmt.Errorf("%v timers pending, %v firing", due, firing)
		}
		return nil
	}, "recovery")
	c.t.Logf("after %v everything had arrived; %.0f MB before, %.0f after", time.Since(began).Round(time.Second),
		before/1e6, value(p, "process_resident_memory_bytes")/1e6)
	c.t.Logf("records: %v", c.records(s))
}

// records counts the log of deliveries by result. Each timer must be delivered, and no attempt may have failed twice: a
// postponement uses none up.
func (c *crowd) records(s *system.System) map[event.Result]int {
	c.t.Helper()
	stream, err := s.JS.OrderedConsumer(c.t.Context(), "TIMERS_DELIVERY", jetstream.OrderedConsumerConfig{})
	if err != nil {
		c.t.Fatal(err)
	}
	messages, err := stream.Messages()
	if err != nil {
		c.t.Fatal(err)
	}
	defer messages.Stop()
	counts := map[event.Result]int{}
	delivered, failed := map[string]bool{}, map[string]int{}
	for left := uint64(1); left > 0; {
		message, err := messages.Next(jetstream.NextMaxWait(system.Patience))
		if err != nil {
			c.t.Fatal(err)
		}
		about, err := message.Metadata()
		if err != nil {
			c.t.Fatal(err)
		}
		left = about.NumPending
		r, err := event.ParseDelivery(message.Data())
		if err != nil {
			c.t.Fatal(err)
		}
		counts[r.Result]++
		switch r.Result {
		case event.ResultDelivered:
			delivered[r.Origin] = true
		case event.ResultRetry:
			if failed[r.Origin]++; failed[r.Origin] != r.Attempt {
				c.t.Errorf("%s failed %d times, and the last time that was attempt %d", r.Origin, failed[r.Origin],
					r.Attempt)
			}
		}
	}
	if len(delivered) != c.sent || counts[event.ResultDead] > 0 {
		c.t.Errorf("%d of %d were delivered, %d are dead letters", len(delivered), c.sent, counts[event.ResultDead])
	}
	return counts
}
