package testenv_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/testenv"
)

func makeStream(t *testing.T, js jetstream.JetStream) {
	t.Helper()
	_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s.>"}})
	if err != nil {
		t.Fatal(err)
	}
}

func publish(t *testing.T, js jetstream.JetStream, subject, id string) {
	t.Helper()
	testenv.Eventually(t, 10*time.Second, func() error {
		_, err := js.Publish(t.Context(), subject, []byte("data of "+id), jetstream.WithMsgID(id))
		return err
	}, "publishing "+id)
}

func TestNATSRestartKeepsTheStream(t *testing.T) {
	t.Parallel()
	s := testenv.NATS(t)
	js := s.JetStream()
	makeStream(t, js)
	collector := testenv.Collect(t, s.JetStream(), "S")
	publish(t, js, "s.a", "1")
	collector.Wait(1, time.Minute)

	s.Stop()
	if nc := js.Conn(); nc.IsConnected() {
		testenv.Eventually(t, time.Minute, func() bool { return !nc.IsConnected() }, "the cut connection")
	}
	s.Start()
	publish(t, js, "s.b", "2")
	got := collector.Wait(2, 20*time.Second)
	for i, want := range []struct{ subject, id string }{{"s.a", "1"}, {"s.b", "2"}} {
		m := got[i]
		if m.Subject != want.subject || m.ID() != want.id || string(m.Data) != "data of "+want.id ||
			m.Seq != uint64(i+1) {
			t.Errorf("message %d = %s %s %q seq %d, want %s %s", i, m.Subject, m.ID(), m.Data, m.Seq, want.subject,
				want.id)
		}
		if m.Time.IsZero() || m.Received.Before(m.Time.Add(-time.Second)) {
			t.Errorf("message %d: stored %v, received %v", i, m.Time, m.Received)
		}
	}
	collector.Stays(2, 50*time.Millisecond)
}

func TestNATSOptions(t *testing.T) {
	t.Parallel()
	s := testenv.NATS(t, func(o *server.Options) { o.MaxPayload = 2048 })
	if got := s.Conn().MaxPayload(); got != 2048 {
		t.Errorf("max_payload = %d, want 2048", got)
	}
	s.Restart()
	if got := s.Conn().MaxPayload(); got != 2048 {
		t.Errorf("max_payload after a restart = %d, want 2048", got)
	}
}

func TestCollectorFiltersAndCountsDuplicates(t *testing.T) {
	t.Parallel()
	s := testenv.NATS(t)
	js := s.JetStream()
	_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: "S", Subjects: []string{"s.>"}, Duplicates: 100 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	collector := testenv.Collect(t, js, "S", "s.*.x", "s.y")
	for i, subject := range []string{"s.a.x", "s.a.z", "s.y", "s.z"} {
		publish(t, js, subject, fmt.Sprint(i))
	}
	var subjects []string
	for _, m := range collector.Wait(2, time.Minute) {
		subjects = append(subjects, m.Subject)
	}
	if want := []string{"s.a.x", "s.y"}; !slices.Equal(subjects, want) {
		t.Errorf("subjects %v, want %v", subjects, want)
	}
	if dup := collector.DuplicateIDs(); len(dup) != 0 {
		t.Errorf("duplicates %v, want none", dup)
	}
	// Published again until the stream's duplicate window is over and it is stored a second time.
	testenv.Eventually(t, 10*time.Second, func() bool {
		publish(t, js, "s.y", "2")
		return collector.Len() == 3
	}, "the duplicate")
	if dup := collector.DuplicateIDs(); !slices.Equal(dup, []string{"2"}) {
		t.Errorf("duplicates %v, want [2]", dup)
	}
}
