package admin_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/admin"
	"github.com/timerd-io/timerd/internal/devserver"
	"github.com/timerd-io/timerd/internal/history"
	"github.com/timerd-io/timerd/internal/policy"
	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// letterWorld is a schedule and the stream of dead letters.
type letterWorld struct {
	*testenv.Schedule
	t      *testing.T
	js     jetstream.JetStream
	stored uint64
}

func newLetterWorld(t *testing.T) *letterWorld {
	t.Helper()
	w := &letterWorld{Schedule: testenv.NewSchedule(t), t: t, js: testenv.NATS(t).JetStream()}
	if err := streams.Ensure(t.Context(), w.js, streams.Config{}); err != nil {
		t.Fatal(err)
	}
	return w
}

// publish publishes a message. Those before the last are waited for with it.
func (w *letterWorld) publish(subject string, header nats.Header, data string, last bool) {
	w.t.Helper()
	m := &nats.Msg{Subject: subject, Header: header, Data: []byte(data)}
	var err error
	if w.stored++; last {
		_, err = w.js.PublishMsg(w.t.Context(), m)
	} else {
		err = w.js.Conn().PublishMsg(m)
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// letters publishes the dead letters of n timers of an app.
func (w *letterWorld) letters(app string, n int, lastError string) {
	w.t.Helper()
	for i := range n {
		k := keys.Key{App: app, Module: "m", Type: "t", ID: fmt.Sprint(i)}
		e := event.Event{Type: event.TypeDead, Key: k, Due: time.Now(), Attempt: 3, Data: []byte("x"),
			DeadReason: event.ReasonExhausted, LastError: lastError}
		e.ID = keys.EventID(k.String(), e.Due.UnixMilli(), 3)
		w.publish(k.Subject(keys.DefaultPrefix, keys.Dead), nil, string(e.AppendJSON(nil)), i == n-1)
	}
}

// hostile publishes n messages that are no dead letters.
func (w *letterWorld) hostile(n int) {
	w.t.Helper()
	forged := event.Event{ID: "x", Type: event.TypeDead, Key: keys.Key{App: "shop", Module: "m", Type: "t", ID: "0"},
		Due: time.Now(), Attempt: 1}
	for i := range n {
		subject, header, data := "timers.dead.evil.m.t", nats.Header{}, ""
		switch i % 5 {
		case 0:
			header = nats.Header{"Status": {"409"}, "Description": {"Consumer Deleted"}}
		case 1:
			header = nats.Header{"Nats-Sequence": {"1"}, "Nats-Subject": {"timers.dead.shop.m.t"}}
			data = string(forged.AppendJSON(nil))
		case 2:
			data = "\xff{" + strings.Repeat("[", 500)
		case 3:
			subject = "timers.dead.evil"
		case 4:
			data = `{"specversion":"1.0","subject":"` + strings.Repeat("a", 2000) + `"}`
		}
		w.publish(subject, header, data, i%1000 == 999 || i == n-1)
	}
}

func (w *letterWorld) choose(chosen admin.LetterSelection) (*admin.Letters, admin.LetterCount) {
	w.t.Helper()
	all, err := admin.SelectLetters(w.t.Context(), w.js, keys.Names{}, chosen)
	if err != nil {
		w.t.Fatal(err)
	}
	found, err := all.Find(w.t.Context(), func(admin.Letter, string) error { return nil })
	if err != nil {
		w.t.Fatal(err)
	}
	return all, found
}

// left checks how many letters there are.
func (w *letterWorld) left(want uint64) {
	w.t.Helper()
	stream, err := w.js.Stream(w.t.Context(), keys.Names{}.DeadStream())
	if err != nil {
		w.t.Fatal(err)
	}
	if n := stream.CachedInfo().State.Msgs; n != want {
		w.t.Errorf("%d letters are left, want %d", n, want)
	}
}

// Thousands of hostile messages in the stream keep nobody from finding, replaying and purging dead letters, and an
// interruption loses none.
func TestAmongHostileLetters(t *testing.T) {
	t.Parallel()
	w := newLetterWorld(t)
	w.letters("pay", 20, "timeout")
	w.hostile(1000)
	w.letters("shop", 40, "502 Bad Gateway")
	w.hostile(1000)

	if _, found := w.choose(admin.LetterSelection{}); len(found.All) != 2060 || len(found.Replayable) != 60 {
		t.Errorf("%d letters, %d of them with a timer; want 2060 and 60", len(found.All), len(found.Replayable))
	}
	page, err := history.New(w.js, keys.Names{}).Search(t.Context(), admin.LetterSelection{Text: "bad gateway"}.Query(),
		"", 10)
	if err != nil || len(page.Records) != 10 || page.Records[0].Event.Key.App != "shop" || page.Place == "" {
		t.Errorf("a page of %d letters, then %q: %v", len(page.Records), page.Place, err)
	}

	chosen := admin.LetterSelection{Text: "BAD gateway"}
	all, found := w.choose(chosen)
	w.letters("shop", 5, "502 Bad Gateway, later")
	interrupted, replayed := errors.New("interrupted"), 0
	n, err := all.Replay(t.Context(), w.Schedule.Schedule, found.Replayable, func(admin.Letter, bool) error {
		if replayed++; replayed == 10 {
			return interrupted
		}
		return nil
	})
	if n != 10 || !errors.Is(err, interrupted) {
		t.Fatalf("%d replayed: %v", n, err)
	}
	w.left(w.stored - 10)
	all, found = w.choose(chosen)
	n, err = all.Replay(t.Context(), w.Schedule.Schedule, found.Replayable,
		func(admin.Letter, bool) error { return nil })
	if n != 35 || err != nil {
		t.Errorf("%d replayed then, want 35: %v", n, err)
	}
	w.left(w.stored - 45)
	if pending, firing := w.Count(); pending+firing != 45 {
		t.Errorf("%d timers are set, want 45", pending+firing)
	}

	progress := 0
	all, found = w.choose(admin.LetterSelection{Namespace: keys.Namespace{App: "evil"}})
	if err := all.Purge(t.Context(), found.All, func(purged int) { progress = purged }); err != nil ||
		progress != 1600 {
		t.Errorf("%d purged, want 1600: %v", progress, err)
	}
	all, found = w.choose(admin.LetterSelection{Text: "not a JSON object"})
	if err := all.Purge(t.Context(), found.All, func(purged int) { progress = purged }); err != nil || progress != 400 {
		t.Errorf("%d purged by text, want 400: %v", progress, err)
	}
	w.left(20)
}

// Letters of a key that has no room for more timers stay, and keep no others from being replayed.
func TestReplayOfACrowdedKey(t *testing.T) {
	t.Parallel()
	w := newLetterWorld(t)
	ctx, s := t.Context(), w.Schedule.Schedule
	crowded := keys.Key{App: "crowd", Module: "m", Type: "t", ID: "0"}
	now, err := s.Clock(ctx)
	if err != nil {
		t.Fatal(err)
	}
	// No more may wait beside its timer, and in each ms of the next minute another of its firings is due.
	for i := 0; err == nil; i++ {
		_, _, err = s.Retry(ctx, schedule.Retry{EventID: fmt.Sprint(i), Key: crowded,
			Due: schedule.MillisOf(now.Add(time.Hour)), Attempt: 2})
	}
	if !errors.Is(err, schedule.ErrTooManyRetries) {
		t.Fatal(err)
	}
	var firings []redis.Z
	for i := range time.Minute.Milliseconds() {
		firings = append(firings, redis.Z{Score: 1, Member: fmt.Sprintf("%d:1:%s", now.UnixMilli()+i, crowded)})
	}
	for some := range slices.Chunk(firings, 10_000) {
		if err := s.Client().ZAdd(ctx, keys.Single.Firing(), some...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	w.letters("crowd", 1, "")
	w.letters("shop", 2, "")
	all, found := w.choose(admin.LetterSelection{})
	var apps []string
	n, err := all.Replay(ctx, s, found.Replayable, func(l admin.Letter, _ bool) error {
		apps = append(apps, l.Event.Key.App)
		return nil
	})
	if fmt.Sprint(n, apps) != "2 [shop shop]" || !errors.Is(err, schedule.ErrTooManyRetries) ||
		!strings.Contains(err.Error(), "1 dead letters stay") {
		t.Errorf("%d replayed, of %v: %v", n, apps, err)
	}
	w.left(1)
}

// Letters whose timers are in a slot that is moving, or on a master that does not answer, stay and keep no others from
// being replayed.
func TestReplayInACluster(t *testing.T) {
	t.Parallel()
	w := newLetterWorld(t)
	ctx := t.Context()
	cluster := testenv.Cluster(t, 3, false, devserver.Directive("cluster-require-full-coverage", "no"))
	s := schedule.New(cluster.Client(), schedule.DefaultMaxPayload)
	if _, err := s.Load(ctx); err != nil {
		t.Fatal(err)
	}
	slot := keys.PartitionOf("shop:m:t:0").Slot()
	from, to := cluster.Master(slot), cluster.Master((slot+keys.Slots/3)%keys.Slots)
	const n = 30
	w.letters("shop", n, "")
	elsewhere, left := 0, 0
	for i := range n {
		if cluster.Master(keys.PartitionOf(fmt.Sprint("shop:m:t:", i)).Slot()) != from {
			elsewhere++
		}
	}
	replay := func() (int, error) {
		all, found := w.choose(admin.LetterSelection{})
		left = len(found.Replayable)
		return all.Replay(ctx, s, found.Replayable, func(admin.Letter, bool) error { return nil })
	}
	if _, err := s.PassOver(ctx, time.Minute); err != nil {
		t.Fatal(err)
	}
	from.Pause()
	away, err := s.PassOver(ctx, 2*time.Second)
	if err != nil || len(away) != 1 {
		t.Fatalf("%+v, %v", away, err)
	}
	done, err := replay()
	if _, is := errors.AsType[schedule.Away](err); !is || done != elsewhere {
		t.Errorf("%d replayed while a master is away, want %d: %v", done, elsewhere, err)
	}
	w.left(uint64(n - elsewhere))
	from.Resume()
	cluster.AwaitOK()
	if away, err = s.PassOver(ctx, time.Minute); err != nil || len(away) != 0 {
		t.Fatalf("%+v, %v", away, err)
	}
	cluster.OpenSlot(slot, from, to)
	done, err = replay()
	if _, is := errors.AsType[*query.MovingError](err); !is || done != left-1 {
		t.Errorf("%d replayed while a slot moves, want %d: %v", done, left-1, err)
	}
	w.left(1)
	cluster.CloseSlot(slot, from, to)
	testenv.Eventually(t, time.Minute, func() bool {
		done, err = replay()
		return err == nil && done == 1
	}, "the last one to be replayed")
}

// Letters and events with a guard of another slot of the cluster are named, and keep no others from being set again.
func TestGuardsOfOtherSlots(t *testing.T) {
	t.Parallel()
	w := newLetterWorld(t)
	ctx := t.Context()
	s := schedule.New(testenv.Cluster(t, 3, false).Client(), schedule.DefaultMaxPayload)
	if _, err := s.Load(ctx); err != nil {
		t.Fatal(err)
	}
	ids := map[uint64]string{}
	for i, guard := range []string{"paid:{0}", "paid", "paid:{2}", "live", ""} {
		e := event.Event{Type: event.TypeFired, Key: keys.Key{App: "shop", Module: "m", Type: "t",
			ID: fmt.Sprintf("{%d}", i)}, Due: time.Now(), Attempt: 1, Guards: policy.Guards{Unless: guard}}
		e.ID = keys.EventID(e.Key.String(), e.Due.UnixMilli(), 1)
		ids[uint64(i+1)] = e.ID
		w.publish(e.Key.Subject(keys.DefaultPrefix, keys.Fired), nil, string(e.AppendJSON(nil)), true)
		e.ID = keys.EventID(e.Key.String(), e.Due.UnixMilli()+1, 1) // another firing
		e.Type, e.DeadReason = event.TypeDead, event.ReasonExhausted
		w.publish(e.Key.Subject(keys.DefaultPrefix, keys.Dead), nil, string(e.AppendJSON(nil)), true)
	}
	all, found := w.choose(admin.LetterSelection{})
	n, err := all.Replay(ctx, s, found.Replayable, func(admin.Letter, bool) error { return nil })
	if n != 3 || !errors.Is(err, schedule.ErrGuardSlot) ||
		!strings.Contains(err.Error(),
			"2 dead letters stay, as their guards are not in the slots of their keys: 2, 4: ") {
		t.Errorf("%d replayed: %v", n, err)
	}
	w.left(2)
	done, err := admin.NewFirings(s, history.New(w.js, keys.Names{})).Resend(ctx, ids, func(admin.Resent) {})
	if done != (admin.Resent{Sent: 3, Misplaced: 2}) || !errors.Is(err, schedule.ErrGuardSlot) ||
		!strings.Contains(err.Error(), "2 events are not sent again, numbers 2, 4: ") {
		t.Errorf("%+v: %v", done, err)
	}
}

// Letters that were selected and are gone are passed over. It is an error if none is there.
func TestSelectionOfNumbers(t *testing.T) {
	t.Parallel()
	w := newLetterWorld(t)
	w.letters("shop", 5, "")
	all, found := w.choose(admin.LetterSelection{Seqs: []uint64{4, 2, 2, 99}})
	if fmt.Sprint(found.All) != "[2 4]" {
		t.Errorf("found %v, want 2 and 4", found.All)
	}
	if err := all.Purge(t.Context(), found.All, func(int) {}); err != nil {
		t.Fatal(err)
	}
	w.left(3)
	for _, chosen := range []admin.LetterSelection{{Seqs: []uint64{2}}, {Seqs: []uint64{2, 4}}, {ID: "no such id"}} {
		if _, err := admin.SelectLetters(t.Context(), w.js, keys.Names{}, chosen); !errors.Is(err, admin.ErrNoLetter) {
			t.Errorf("%+v: %v", chosen, err)
		}
	}
}
