package streams_test

import (
	"encoding/json"
	"errors"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
)

// A mark changes nothing else in a stream, not even settings unknown to the client library.
func TestSetOwnerLeavesTheStreamAsItIs(t *testing.T) {
	t.Parallel()
	js := testenv.NATS(t).JetStream()
	config := jetstream.StreamConfig{
		Name: "TIMERS", Subjects: []string{"timers.fired.>", "more"}, Description: "ours", MaxMsgs: 7,
		MaxAge: time.Hour, Duplicates: time.Minute,
		AllowRollup: true, AllowMsgTTL: true, AllowDirect: true, Compression: jetstream.S2Compression,
		Metadata:       map[string]string{"team": "a"},
		ConsumerLimits: jetstream.StreamConsumerLimits{MaxAckPending: 9},
	}
	if _, err := js.CreateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	read := func() (config map[string]any, metadata map[string]any) {
		t.Helper()
		reply, err := js.Conn().Request("$JS.API.STREAM.INFO.TIMERS", nil, 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		var info struct{ Config map[string]any }
		if err := json.Unmarshal(reply.Data, &info); err != nil {
			t.Fatal(err)
		}
		metadata, _ = info.Config["metadata"].(map[string]any)
		delete(info.Config, "metadata")
		return info.Config, metadata
	}
	before, had := read()
	for _, id := range []string{"first", "second"} {
		if err := streams.SetOwner(t.Context(), js, streams.Owner{Stream: "TIMERS", Installation: id}); err != nil {
			t.Fatal(err)
		}
		after, has := read()
		if !reflect.DeepEqual(before, after) {
			t.Errorf("the configuration was\n%v\nand is\n%v", before, after)
		}
		want := maps.Clone(had)
		want[keys.InstallationMetadata] = id
		if !maps.Equal(has, want) {
			t.Errorf("metadata %v, want %v", has, want)
		}
		owners, err := streams.Owners(t.Context(), js, streams.Config{})
		if err != nil || !slices.Equal(owners, []streams.Owner{{Stream: "TIMERS", Installation: id}}) {
			t.Errorf("owners %v, %v", owners, err)
		}
	}
	if err := streams.SetOwner(t.Context(), js, streams.Owner{Stream: "NONE", Installation: "x"}); !errors.Is(err,
		jetstream.ErrStreamNotFound) {
		t.Errorf("no stream: %v", err)
	}
}

// After the first stream that is another installation's no other is made.
func TestEnsureStreamsOfAnotherInstallation(t *testing.T) {
	t.Parallel()
	js := testenv.NATS(t).JetStream()
	first, second := streams.Config{Installation: "first"}, streams.Config{Installation: "second"}
	if err := streams.Ensure(t.Context(), js, first); err != nil {
		t.Fatal(err)
	}
	if err := js.DeleteStream(t.Context(), "TIMERS_DEAD"); err != nil {
		t.Fatal(err)
	}
	err := streams.Ensure(t.Context(), js, second)
	fault, ok := errors.AsType[*streams.Fault](err)
	if !ok || fault.Owner != "first" || !strings.Contains(err.Error(), "timerd doctor --adopt-streams") {
		t.Errorf("another installation: %v", err)
	}
	if _, err := js.Stream(t.Context(), "TIMERS_DEAD"); !errors.Is(err, jetstream.ErrStreamNotFound) {
		t.Errorf("it made a stream: %v", err)
	}
	if err := streams.Ensure(t.Context(), js, first); err != nil {
		t.Error(err)
	}
}
