package main

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/keys"
)

// journal has the log of deliveries by order.
type journal struct {
	out    io.Writer // gets a line for each attempt that failed
	byKey  map[string]*record
	orders []*record // in the order of their payments
	open   int       // orders that are not settled
}

// record is the history of an order.
type record struct {
	order    string
	attempts []event.Delivery
}

func newJournal(payments []payment, out io.Writer) *journal {
	j := &journal{out: out, byKey: map[string]*record{}, open: len(payments)}
	for _, p := range payments {
		r := &record{order: p.Order}
		j.orders = append(j.orders, r)
		j.byKey[p.key()] = r
	}
	return j
}

// follow reads the log until every order is settled. It waits for timerd deliver to make the stream.
func (j *journal) follow(ctx context.Context, js jetstream.JetStream, ended <-chan struct{}) error {
	stream, err := js.Stream(ctx, keys.Names{}.DeliveryStream())
	for err != nil {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ended:
			return fmt.Errorf("timerd deliver ended at its start: %w", err)
		case <-time.After(20 * time.Millisecond):
		}
		stream, err = js.Stream(ctx, keys.Names{}.DeliveryStream())
	}
	consumer, err := stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{})
	if err != nil {
		return err
	}
	messages, err := consumer.Messages()
	if err != nil {
		return err
	}
	defer messages.Stop()
	for j.open > 0 {
		m, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return err
		}
		r, err := event.ParseDelivery(m.Data())
		if err != nil {
			return err
		}
		j.note(r)
	}
	return nil
}

// note takes in a record. Those of orders that were not paid here are passed over.
func (j *journal) note(r event.Delivery) {
	of := j.byKey[r.Subject]
	if of == nil {
		return
	}
	of.attempts = append(of.attempts, r)
	switch r.Result {
	case event.ResultDelivered, event.ResultDead:
		j.open--
	default:
		fmt.Fprintf(j.out, "order %s, attempt %d: %s\n", of.order, r.Attempt, r.Error)
	}
}

// table prints each order's history, with the time of each attempt since the end of the one before.
func (j *journal) table(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "ORDER\tATTEMPT\tAFTER\tANSWER\tRESULT")
	for _, r := range j.orders {
		order := r.order
		var ended time.Time
		for _, a := range r.attempts {
			after := ""
			if !ended.IsZero() {
				after = a.Time.Sub(ended).Round(time.Millisecond).String()
			}
			answer := a.Error
			if a.Result == event.ResultDelivered {
				answer = fmt.Sprint(a.Status)
			}
			fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%s\n", order, a.Attempt, after, answer, a.Result)
			order, ended = "", a.Time.Add(time.Duration(a.Duration)*time.Millisecond)
		}
	}
	return t.Flush()
}
