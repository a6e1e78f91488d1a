package streams_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
)

// The stream of deliveries belongs to the installation of the stream of firings, has its limits, and is used as it is
// where it is there.
func TestEnsureDeliveryStream(t *testing.T) {
	t.Parallel()
	js := testenv.NATS(t).JetStream()
	names := streams.Config{MaxAge: time.Hour, MaxBytes: 1 << 20}
	if err := streams.EnsureDelivery(t.Context(), js, names); err == nil ||
		!strings.Contains(err.Error(), "JetStream has no stream TIMERS") {
		t.Errorf("without the stream of firings: %v", err)
	}
	with := names
	with.Installation = "this-one"
	if err := streams.Ensure(t.Context(), js, with); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := streams.EnsureDelivery(t.Context(), js, names); err != nil {
			t.Fatal(err)
		}
	}
	stream, err := js.Stream(t.Context(), "TIMERS_DELIVERY")
	if err != nil {
		t.Fatal(err)
	}
	c := stream.CachedInfo().Config
	if c.Subjects[0] != "timers.delivery.>" || c.MaxAge != time.Hour || c.MaxBytes != 1<<20 ||
		c.Metadata[keys.InstallationMetadata] != "this-one" {
		t.Errorf("%+v", c)
	}
	if err := js.DeleteStream(t.Context(), "TIMERS_DELIVERY"); err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "OTHER",
		Subjects: []string{"timers.delivery.shop.>"}}); err != nil {
		t.Fatal(err)
	}
	err = streams.EnsureDelivery(t.Context(), js, names)
	if fault, ok := errors.AsType[*streams.Fault](err); !ok || !strings.Contains(fault.Error(), "OTHER") {
		t.Errorf("with another stream on its subjects: %v", err)
	}
}
