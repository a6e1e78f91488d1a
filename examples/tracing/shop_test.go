package tracing

import (
	"context"
	"errors"
	"log/slog"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/examples/internal/servers"
)

const patience = time.Minute

// A callback that fails is made again, and each attempt has a link to the checkout.
func TestCallbacksAreLinkedToTheirCheckout(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "timerd")
	if out, err := exec.Command("go", "build", "-C", "../..", "-race", "-o", binary,
		"./cmd/timerd").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	s, err := servers.Open(t.Context(), servers.Choice{Timerd: binary, Retry: Namespace + "=200ms"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})

	spans := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
	tried, done := atomic.Int64{}, make(chan struct{})
	shop := New(provider.Tracer("shop"), client.New(s.Redis), func(context.Context, string) error {
		if tried.Add(1) == 1 {
			return errors.New("the line is busy")
		}
		close(done)
		return nil
	})
	if err := shop.Checkout(t.Context(), "42", 100*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	consumer := client.NewConsumer(s.JetStream)
	consumer.Logger = slog.New(slog.DiscardHandler)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- shop.Consume(ctx, consumer) }()
	select {
	case <-done:
	case <-time.After(patience):
		t.Error("no callback came")
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}

	var checkout tracetest.SpanStub
	var callbacks []tracetest.SpanStub
	for _, span := range spans.GetSpans() {
		if span.Name == "checkout" {
			checkout = span
		} else {
			callbacks = append(callbacks, span)
		}
	}
	if len(callbacks) != 2 {
		t.Fatalf("%d callbacks, want 2", len(callbacks))
	}
	for _, span := range callbacks {
		if span.Parent.IsValid() || span.SpanContext.TraceID() == checkout.SpanContext.TraceID() {
			t.Errorf("the callback %v is part of another trace", span.SpanContext)
		}
		if len(span.Links) != 1 || span.Links[0].SpanContext.TraceID() != checkout.SpanContext.TraceID() ||
			span.Links[0].SpanContext.SpanID() != checkout.SpanContext.SpanID() {
			t.Errorf("the callback has the links %v, want one to %v", span.Links, checkout.SpanContext)
		}
	}
}
