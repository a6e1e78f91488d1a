package deliver

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
)

func configOf(t *testing.T, sum string, changed time.Time, matches ...string) *Config {
	t.Helper()
	c := &Config{Group: DefaultGroup, File: File{Sum: sum, Changed: changed}}
	for _, match := range matches {
		n, err := keys.ParseNamespace(match)
		if err != nil {
			t.Fatal(err)
		}
		c.Endpoints = append(c.Endpoints, &Endpoint{Match: n, Concurrency: 1, Timeout: time.Second})
	}
	return c
}

// What a process's file does not match is dropped only while the group goes by that file: in the moment after another
// process has changed that, it is given back, and the process with the newer file gets it.
func TestNothingIsDroppedByAnOldFile(t *testing.T) {
	t.Parallel()
	js := testenv.NATS(t).JetStream()
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "TIMERS",
		Subjects: []string{"timers.fired.>"}}); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	old := newGroup(js, keys.Names{}, configOf(t, "old", now.Add(-time.Minute), "pay"))
	fresh := newGroup(js, keys.Names{}, configOf(t, "new", now, "pay", "shop"))
	covers, wrote, err := old.join(t.Context(), "")
	if err != nil || !wrote {
		t.Fatal(wrote, err)
	}
	d := New(js, old.config)
	w := newWorker(t.Context(), t.Context(), d, old.durable(), d.route(old, covers))
	shop := event.Event{Key: keys.Key{App: "shop", Module: "order", Type: "callback", ID: "1"}}
	if _, e, err := w.find(t.Context(), shop); e != nil || err != nil {
		t.Errorf("while the group goes by the old file: %v, %v; want it dropped", e, err)
	}

	if covers, wrote, err = fresh.join(t.Context(), ""); err != nil || !wrote || !covers.covers(shop.Key, 1) {
		t.Fatal(covers, wrote, err)
	}
	found := make(chan error, 1)
	go func() {
		_, e, err := w.find(t.Context(), shop)
		if e != nil {
			err = errors.New("it has an endpoint")
		}
		found <- err
	}()
	select {
	case <-w.lost:
	case err := <-found:
		t.Fatalf("it was dropped, or called: %v", err)
	}
	w.stop()
	if err := <-found; !errors.Is(err, errOtherFile) {
		t.Errorf("once the group goes by the new file: %v, want it given back", err)
	}
	if _, _, err := old.join(t.Context(), ""); err == nil || !strings.Contains(err.Error(), "uses another file") {
		t.Errorf("the old file joins: %v", err)
	}

	// The same with routes that change meanwhile, as by SIGHUP: the event is the new ones'.
	w = newWorker(t.Context(), t.Context(), d, old.durable(), d.route(old, coverage{}))
	defer w.stop()
	go func() {
		<-w.lost
		w.rules.set(d.route(fresh, begin(fresh.config.Matches(), 0)))
	}()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if r, e, err := w.find(ctx, shop); err != nil || e != fresh.config.Endpoints[1] || r.config != fresh.config {
		t.Errorf("after the file was read again: %v, %v", e, err)
	}
}

// A group that version 85ce861 has made goes on with any namespaces.
func TestGroupOfAnEarlierVersion(t *testing.T) {
	t.Parallel()
	js := testenv.NATS(t).JetStream()
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "TIMERS",
		Subjects: []string{"timers.fired.>"}}); err != nil {
		t.Fatal(err)
	}
	g := newGroup(js, keys.Names{}, configOf(t, "file", time.Now(), "%22shop%22:%5Ba%5D"))
	if _, _, err := g.join(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	c, err := js.Consumer(t.Context(), "TIMERS", g.durable())
	if err != nil {
		t.Fatal(err)
	}
	config := c.CachedInfo().Config
	older := strings.ReplaceAll(config.Metadata[rulingKey], "%22shop%22:%5Ba%5D", `\"shop\":[a]`)
	if older == config.Metadata[rulingKey] {
		t.Fatalf("the group says %s", older)
	}
	config.Metadata[rulingKey] = older
	if _, err := js.UpdateConsumer(t.Context(), "TIMERS", config); err != nil {
		t.Fatal(err)
	}
	covers, _, err := g.join(t.Context(), "")
	if err != nil || !covers.covers(keys.Key{App: `"shop"`, Module: "[a]", Type: "t", ID: "1"}, 1) {
		t.Errorf("it covers %v, %v", covers, err)
	}
}
