package main

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/internal/testenv"
)

// Failed deliveries are dead letters and calls without success. A delivery postponed without a call has not failed.
func TestDeliveriesFailed(t *testing.T) {
	server := testenv.NATS(t)
	testenv.SetVariables(t, map[string]string{"TIMERD_NATS_URL": server.URL()})
	js := server.JetStream()
	if err := errors.Join(streams.Ensure(t.Context(), js, streams.Config{}),
		streams.EnsureDelivery(t.Context(), js, streams.Config{})); err != nil {
		t.Fatal(err)
	}
	for _, d := range []event.Delivery{
		{ID: "done", Result: event.ResultDelivered, Status: 200, Duration: 3},
		{ID: "failed", Result: event.ResultRetry, Status: 500, Duration: 3},
		{ID: "not-called", Result: event.ResultPostponed, Error: "the circuit is open"},
		{ID: "probe", Result: event.ResultPostponed, Duration: 1, Error: "connection refused"},
		{ID: "no-url", Result: event.ResultDead, Error: "bad URL"},
	} {
		d.Subject, d.Attempt, d.Host, d.Time = "pay:order:callback:"+d.ID, 1, "merchant.example:443",
			time.UnixMilli(1763629200000)
		data, err := json.Marshal(d)
		if err == nil {
			_, err = js.Publish(t.Context(), "timers.delivery.pay.order.callback", data)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	ids := func(args ...string) string {
		var all []string
		for line := range strings.Lines(ok(t, append([]string{"deliveries", "--json"}, args...)...)) {
			d, err := event.ParseDelivery([]byte(line))
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, d.ID)
		}
		return strings.Join(all, " ")
	}
	if got, want := ids("--failed"), "failed probe no-url"; got != want {
		t.Errorf("failed: %s; want %s", got, want)
	}
	if got, want := ids(), "done failed not-called probe no-url"; got != want {
		t.Errorf("all: %s; want %s", got, want)
	}
}
