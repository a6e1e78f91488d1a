package core_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/test/system"
)

// The whole way: a timer, a merchant that fails twice, the log, the commands, the metrics and the stop.
func TestDeliver(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	s.Start("TIMERD_RETRY=*=50ms,100ms")
	var n atomic.Int64
	m := system.NewMerchant(t, func(w http.ResponseWriter, _ *http.Request) {
		if n.Add(1) < 3 {
			w.WriteHeader(http.StatusInternalServerError)
			fmt.Fprint(w, "out of order")
		}
	})
	p := s.Deliverer(system.Webhooks(t, "pay:order:callback {data.notify_url}"))
	s.Do("FCALL", "timer_set", 1, "pay:order:callback:1", `{"notify_url":"`+m.URL+`"}`, "PX", 50)
	log := testenv.Collect(t, s.JS, "TIMERS_DELIVERY")
	log.Wait(3, system.Patience)
	s.Do("FCALL", "timer_set", 1, "pay:order:callback:2", `{"notify_url":"http://10.0.0.1/"}`, "PX", 50)
	var results []string
	for _, message := range log.Wait(4, system.Patience) {
		r, err := event.ParseDelivery(message.Data)
		if err != nil {
			t.Fatal(err)
		}
		results = append(results, fmt.Sprintf("%s %d %s %d", r.Subject, r.Attempt, r.Result, r.Status))
		if message.Subject != "timers.delivery.pay.order.callback" {
			t.Errorf("subject %s", message.Subject)
		}
	}
	want := []string{"pay:order:callback:1 1 retry 500", "pay:order:callback:1 2 retry 500",
		"pay:order:callback:1 3 delivered 200", "pay:order:callback:2 1 dead 0"}
	if strings.Join(results, "\n") != strings.Join(want, "\n") {
		t.Errorf("log\n%s\nwant\n%s", strings.Join(results, "\n"), strings.Join(want, "\n"))
	}
	byID, _ := m.Seen()
	if len(byID) != 1 {
		t.Errorf("webhook-ids %v, want one for all attempts", byID)
	}
	for id, attempts := range byID {
		if len(attempts) != 3 || event.WebhookID(attempts[0]) != id || strings.Contains(id, ".") ||
			attempts[1].ID == attempts[0].ID || attempts[2].Origin != attempts[0].ID {
			t.Errorf("%s: attempts %+v", id, attempts)
		}
	}

	lines := strings.Split(strings.TrimSpace(s.OK("deliveries", "pay:order")), "\n")
	if len(lines) != 5 || !strings.Contains(lines[1], "500") || !strings.Contains(lines[1], "out of order") ||
		!strings.Contains(lines[4], "dead") {
		t.Errorf("timerd deliveries:\n%s", strings.Join(lines, "\n"))
	}
	if out := s.OK("deliveries", "--failed", "--json"); strings.Count(out, "\n") != 3 ||
		strings.Contains(out, `"delivered"`) {
		t.Errorf("timerd deliveries --failed --json:\n%s", out)
	}
	if out := s.OK("deliveries", "shop"); out != "" {
		t.Errorf("timerd deliveries shop:\n%s", out)
	}
	out := s.StatusSays(0, "\n  TIMERS_DELIVERY ", "\nwebhooks\n", " IN WORK ", " REDELIVERED ", " FAILED IN 10m\n",
		"\n  timerd-deliver  0        0        -       ")
	if strings.Contains(out, "TIMERS_DELIVERY  ?") {
		t.Errorf("timerd status:\n%s", out)
	}
	if out := s.OK("status", "--json"); !strings.Contains(out,
		`"webhooks":[{"name":"timerd-deliver","waiting":0,"working":0,"last":"`) {
		t.Errorf("timerd status --json:\n%s", out)
	}
	_, said, _ := s.Run("", "doctor")
	if !strings.Contains(said,
		"ok    webhooks          TIMERS_DELIVERY fits; consumers of timerd deliver: 1; events that wait: 0, in work: "+
			"0\n") {
		t.Errorf("timerd doctor:\n%s", said)
	}
	_, metrics, err := p.Get("/metrics")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`timerd_deliveries_total{result="delivered"} 1`, `timerd_deliveries_total{result="retry"} 2`,
		`timerd_deliveries_total{result="dead"} 1`,
		`timerd_deliveries_total{result="postponed"} 0`, "timerd_delivery_seconds_count 4", "timerd_circuit_open 0",
		`timerd_ready{check="endpoints"} 1`, `timerd_ready{check="log of deliveries"} 1`,
		"timerd_deliveries_unlogged_total 0",
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("metrics without %s", want)
		}
	}
	testenv.Lacks(t, metrics+p.Log.String(), strings.TrimPrefix(system.WebhookSecret, "whsec_"))
	p.Stop()
}
