package client

import (
	"context"

	"github.com/timerd-io/timerd/event"
)

// Propagator carries a trace from the code that sets a timer to the handler of its event. It is an interface of two
// methods, so that this package needs no tracing SDK. With OpenTelemetry each is one line: the same method of
// propagation.TraceContext, with propagation.MapCarrier(carrier). Its methods may be called concurrently.
//
// A timer may fire days after it was set. So give the handler's span a trace of its own, with a link to the span of the
// Set.
type Propagator interface {
	// Inject puts the trace in ctx into carrier, in the form of W3C Trace Context: traceparent, and perhaps tracestate.
	// A timer takes the traceparent.
	Inject(ctx context.Context, carrier map[string]string)
	// Extract returns a context with the trace in carrier.
	Extract(ctx context.Context, carrier map[string]string) context.Context
}

// trace returns the option of timer_set for the trace in ctx, or nil if there is none.
func (t *Timers) trace(ctx context.Context) []any {
	if t.Propagator == nil {
		return nil
	}
	carrier := map[string]string{}
	t.Propagator.Inject(ctx, carrier)
	if parent := carrier[event.TraceParentHeader]; parent != "" {
		return []any{"TRACE", parent}
	}
	return nil
}

// traced returns a handler's context, with the trace of its event.
func (c *Consumer) traced(ctx context.Context, e *Event) context.Context {
	if c.Propagator == nil || e.TraceParent == "" {
		return ctx
	}
	carrier := map[string]string{event.TraceParentHeader: e.TraceParent}
	if e.TraceState != "" {
		carrier[event.TraceStateHeader] = e.TraceState
	}
	return c.Propagator.Extract(ctx, carrier)
}
