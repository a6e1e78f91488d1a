package firing_test

import (
	"io"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/bench/internal/firing"
	"github.com/timerd-io/timerd/keys"
)

func TestTimer(t *testing.T) {
	for _, n := range []int64{0, 1, 42, 1_000_000_000, 1 << 40} {
		timer := firing.Timer{N: n}
		if _, err := keys.Parse(timer.Key()); err != nil {
			t.Errorf("key %q: %v", timer.Key(), err)
		}
		if len(timer.Key()) != firing.KeyBytes || len(timer.Payload()) != firing.PayloadBytes {
			t.Errorf("%d: a key of %d bytes and a payload of %d", n, len(timer.Key()), len(timer.Payload()))
		}
		if got, err := firing.OfKey(timer.Key()); err != nil || got != n {
			t.Errorf("key of %d says %d, %v", n, got, err)
		}
		if got, err := firing.OfPayload([]byte(`{"data":` + string(timer.Payload()) + "}")); err != nil || got != n {
			t.Errorf("payload of %d says %d, %v", n, got, err)
		}
	}
	if _, err := firing.OfKey("cache:1"); err == nil {
		t.Error("a foreign key is taken for a timer")
	}
	if _, err := firing.OfPayload([]byte(`{"m":1}`)); err == nil {
		t.Error("a foreign payload is taken for a timer's")
	}
}

func TestReports(t *testing.T) {
	at := time.UnixMicro(1_763_629_200_123_456)
	want := []firing.Firing{
		{N: 1, Received: at},
		{N: 2, Received: at.Add(time.Second), Published: at, Due: at.Add(-time.Second)},
	}
	r, w := io.Pipe()
	go func() {
		report := firing.NewReporter(w)
		err := report.Ready()
		for _, f := range want {
			if err == nil {
				err = report.Fired(f)
			}
		}
		if err == nil {
			err = report.Ready() // flushes
		}
		w.CloseWithError(err)
	}()
	var got []firing.Firing
	ready := 0
	if err := firing.Read(r, func() { ready++ }, func(f firing.Firing) { got = append(got, f) }); err != nil {
		t.Fatal(err)
	}
	if ready != 2 || !reflect.DeepEqual(got, want) {
		t.Errorf("read %v after %d ready, want %v after 2", got, ready, want)
	}
	if err := firing.Read(strings.NewReader("1 2 3\n"), nil, nil); err == nil {
		t.Error("a broken line is no error")
	}
}
