// Package tracing is an example: a shop whose traces, by OpenTelemetry, lead from a checkout to the callbacks that it
// causes.
//
// The checkout sets a timer, and timerd carries the trace along: in the timer, in its events, through each retry. The
// span of a callback has a trace of its own and a link to the checkout. It is not a child of it: the timer may fire
// days later, when the trace of the checkout has long been stored.
package tracing

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/timerd-io/timerd/client"
)

// Namespace is the timers' namespace: shop:order:callback:<order>.
const Namespace = "shop:order:callback"

// propagator is a client.Propagator by OpenTelemetry.
type propagator struct{ w3c propagation.TraceContext }

func (p propagator) Inject(ctx context.Context, carrier map[string]string) {
	p.w3c.Inject(ctx, propagation.MapCarrier(carrier))
}

func (p propagator) Extract(ctx context.Context, carrier map[string]string) context.Context {
	return p.w3c.Extract(ctx, propagation.MapCarrier(carrier))
}

// Shop takes orders and calls its customers back.
type Shop struct {
	tracer trace.Tracer
	timers *client.Timers
	call   func(ctx context.Context, order string) error
}

// New returns a Shop that sets its callbacks through timers, which take their traces from now on, and makes them by
// call.
func New(tracer trace.Tracer, timers *client.Timers, call func(ctx context.Context, order string) error) *Shop {
	timers.Propagator = propagator{}
	return &Shop{tracer: tracer, timers: timers, call: call}
}

// Checkout takes an order; the customer is notified a while later.
func (s *Shop) Checkout(ctx context.Context, order string, after time.Duration) error {
	ctx, span := s.tracer.Start(ctx, "checkout", trace.WithSpanKind(trace.SpanKindProducer))
	defer span.End()
	_, err := s.timers.Set(ctx, Namespace+":"+order, []byte(order), client.After(after))
	return err
}

// Consume makes the callbacks until ctx ends.
func (s *Shop) Consume(ctx context.Context, consumer *client.Consumer) error {
	consumer.Propagator = propagator{}
	return consumer.Consume(ctx, Namespace, s.callback)
}

// callback is the client.Handler.
func (s *Shop) callback(ctx context.Context, e client.Event) error {
	ctx, span := s.tracer.Start(ctx, "callback", trace.WithSpanKind(trace.SpanKindConsumer),
		trace.WithNewRoot(), trace.WithLinks(trace.LinkFromContext(ctx)))
	defer span.End()
	err := s.call(ctx, e.Key.ID)
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
	}
	return err
}
