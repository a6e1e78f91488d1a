package admin_test

import (
	"context"
	"fmt"
	"time"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/client/admin"
	"github.com/timerd-io/timerd/internal/testenv/timerdtest"
)

// While a provider is down its timers are held. Afterwards customers get the time that the outage took from them.
func ExampleOperator_Hold() {
	rdb, _, stop := timerdtest.Servers()
	defer stop()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	timers, operator := client.New(rdb), admin.New(rdb)

	due, err := timers.Set(ctx, "shop:order:timeout:42", nil, client.After(time.Hour))
	if err != nil {
		fmt.Println(err)
		return
	}
	if _, err := operator.Hold(ctx, "shop:order", admin.Reason("provider is down"),
		admin.For(2*time.Hour)); err != nil {
		fmt.Println(err) // an error that wraps admin.ErrUnconfirmed: it is held, but not yet for certain
		return
	}
	holds, err := operator.Holds(ctx)
	for _, h := range holds {
		fmt.Printf("%s is held: %s, for %v, %d wait\n", h.Namespace, h.Reason, h.Until.Sub(h.Since), h.Held)
	}
	fmt.Println("resumed:", err, operator.Resume(ctx, "shop:order", admin.ResumeShift()))

	timer, _, err := timers.Get(ctx, "shop:order:timeout:42") // was not due yet, so it stays as it was set
	fmt.Println(timer.State, timer.Due.Equal(due), err)
	// Output:
	// shop:order is held: provider is down, for 2h0m0s, 0 wait
	// resumed: <nil> <nil>
	// pending true <nil>
}
