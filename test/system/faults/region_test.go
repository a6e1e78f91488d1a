package faults_test

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/devserver"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/test/system"
)

// lostRegion is a set-up of two regions, and how much the second one lacks when the first one is lost.
type lostRegion struct {
	backup   bool // Redis has a backup there, not a replica
	mirrored bool // NATS mirrors TIMERS and TIMERS_DEAD there
	// The link of the replica, or of the mirror, is cut before the last timers fire and are set.
	redisBehind, natsBehind bool
	later                   bool // the second region begins when JetStream no longer drops second events
	want                    regionLosses
}

// regionLosses is what the loss of a region costs.
type regionLosses struct {
	timers  int // that were set and never fire
	events  int // that the second region's TIMERS has not
	doubled int // events that both regions published
}

// The timers: the old ones have fired, and both regions know; the recent ones fire in the first region once links are
// cut, and the late ones are set then, due in an hour. Held ones fire in the second region.
const (
	regionOld, regionRecent, regionLate, regionHeld = 20, 40, 5, 7

	regionWindow = 30 * time.Second // the duplicate window
)

// A region is lost, and the other one takes over. It loses what the copies lack, and publishes no mirrored event
// again.
func TestLostRegion(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]lostRegion{
		"replica, mirror": {mirrored: true, redisBehind: true, want: regionLosses{timers: regionLate}},
		"replica, mirror, later": {mirrored: true, redisBehind: true, later: true,
			want: regionLosses{timers: regionLate}},
		"replica, late mirror": {mirrored: true, natsBehind: true, want: regionLosses{events: regionRecent}},
		"late replica, late mirror": {mirrored: true, redisBehind: true, natsBehind: true,
			want: regionLosses{timers: regionLate, doubled: regionRecent}},
		"backup, mirror": {mirrored: true, backup: true, want: regionLosses{timers: regionLate}},
		"replica alone": {redisBehind: true,
			want: regionLosses{timers: regionLate, events: regionOld, doubled: regionRecent}},
		"backup alone": {backup: true,
			want: regionLosses{timers: regionLate, events: regionOld, doubled: regionRecent}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.play(t)
		})
	}
}

// play loses a region, and counts.
func (c lostRegion) play(t *testing.T) {
	r := newRegions(t, c)
	p := r.first.Start()
	r.mirror()
	r.collector = r.first.Collect()
	r.first.Says(0, "hold shop:held")
	r.set("old", regionOld, 20)
	r.fires(regionOld, 0)
	created := r.first.Now() // of the mirror, at the latest
	testenv.Eventually(t, system.Patience, func() bool { return r.first.LastSeen() > created }, "a heartbeat")
	p.Stop()
	r.set("recent", regionRecent, 20)
	r.set("held", regionHeld, 20)
	backup := ""
	if c.backup {
		backup = r.first.BackUp()
	}
	r.copied(true, true)
	if c.redisBehind {
		r.redis.Cut()
	}
	if c.natsBehind {
		r.nats.Cut()
	}
	p = r.first.Start()
	r.fires(regionOld+regionRecent, regionHeld)
	r.set("late", regionLate, 3600_000)
	r.copied(!c.redisBehind, !c.natsBehind)

	p.Kill()
	lost := time.Now()
	r.redis.Cut()
	r.nats.Cut()
	r.first.Redis.Kill()
	r.first.NATS.Stop()
	if c.backup {
		r.second.PutBack(backup)
	} else {
		r.second.Do("REPLICAOF", "NO", "ONE")
	}
	mirrored := r.promote()
	if c.later {
		r.second.After(r.second.LastSeen() + regionWindow.Milliseconds()/2 + 1000)
	}
	p = r.second.Start()
	if c.waits() {
		r.acknowledge()
	}
	r.second.Says(0, "resume shop:held")
	got := r.count(mirrored)
	t.Logf("%+v; ready after %s", got, time.Since(lost))
	if got != c.want {
		t.Errorf("%+v, want %+v", got, c.want)
	}
	p.Stop()
}

// waits reports whether due timers wait for an operator: there is nothing to compare them with, and a new stream knows
// no ids.
func (c lostRegion) waits() bool { return !c.mirrored }

// acknowledge has timers fire that wait for an operator, after none has.
func (r *regions) acknowledge() {
	r.second.T.Helper()
	r.second.StatusSays(1, "timers wait", "timerd status --acknowledge")
	if last := r.second.LastEvent(); last > 0 {
		r.second.T.Errorf("%d timers did not wait", last)
	}
	r.second.Says(0, "status --acknowledge", "free: ")
}

// regions are two regions: the second one's NATS is a leaf node of the first one's.
type regions struct {
	lostRegion
	first, second *system.System
	redis, nats   *testenv.Proxy     // the links between them
	collector     *testenv.Collector // of the first one's events
}

func newRegions(t *testing.T, c lostRegion) *regions {
	t.Helper()
	leaves, err := devserver.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	r := &regions{lostRegion: c, first: system.New(t, devserver.Directive("repl-diskless-sync-delay", "0")),
		second: system.New(t), nats: testenv.NewProxy(t, devserver.Address(leaves))}
	r.redis = testenv.NewProxy(t, r.first.Redis.Addr())
	r.first.ReplaceNATS(func(o *server.Options) {
		o.JetStreamDomain, o.LeafNode.Host, o.LeafNode.Port = "first", "127.0.0.1", leaves
		o.LeafNode.NoAdvertise = true // else a leaf node goes round the proxy
	})
	others := []string{"timers.>"} // each region has its own subjects
	r.second.ReplaceNATS(func(o *server.Options) {
		o.JetStreamDomain, o.LeafNode.ReconnectInterval = "second", 50*time.Millisecond
		o.LeafNode.Remotes = []*server.RemoteLeafOpts{{URLs: []*url.URL{{Scheme: "nats", Host: r.nats.Addr()}},
			DenyImports: others, DenyExports: others}}
	})
	if !c.backup {
		host, port, _ := strings.Cut(r.redis.Addr(), ":")
		r.second.Do("REPLICAOF", host, port)
	}
	return r
}

// mirroredStreams are the mirrored streams, with the subjects that they take once they are promoted.
func mirroredStreams() map[string]string {
	return map[string]string{"TIMERS": "timers." + keys.Fired + ".>", "TIMERS_DEAD": "timers." + keys.Dead + ".>"}
}

// mirror makes the mirrors.
func (r *regions) mirror() {
	t := r.second.T
	t.Helper()
	if !r.mirrored {
		return
	}
	for name := range mirroredStreams() {
		testenv.Eventually(t, system.Patience, func() error {
			_, err := r.second.JS.CreateStream(t.Context(), jetstream.StreamConfig{Name: name,
				Storage: jetstream.FileStorage, Mirror: &jetstream.StreamSource{Name: name, Domain: "first"}})
			return err
		}, "a mirror of "+name)
	}
}

// set sets timers of an app in the first region, due in some milliseconds.
func (r *regions) set(app string, n, ms int) {
	r.first.T.Helper()
	for i := range n {
		r.first.Do("FCALL", "timer_set", 1, fmt.Sprintf("shop:%s:t:%d", app, i), i, "PX", ms)
	}
}

// fires waits until the first region has fired n timers in all, and has settled them.
func (r *regions) fires(n, held int) {
	r.first.T.Helper()
	r.first.Events(r.collector, n)
	testenv.Eventually(r.first.T, system.Patience, func() bool {
		return r.first.RDB.ZCard(r.first.T.Context(), keys.Single.Firing()).Val() == int64(held)
	}, "the firings to be settled")
}

// copied waits until the replica, and the mirror, have what the first region has.
func (r *regions) copied(redis, nats bool) {
	t := r.first.T
	t.Helper()
	if redis && !r.backup {
		if n := r.first.Do("WAIT", 1, system.Patience.Milliseconds()); n != int64(1) {
			t.Fatalf("%v replicas", n)
		}
	}
	if nats && r.mirrored {
		testenv.Eventually(t, system.Patience, func() error {
			if a, b := r.first.LastEvent(), r.second.LastEvent(); a != b {
				return fmt.Errorf("%d of %d events", b, a)
			}
			return nil
		}, "the mirror")
	}
}

// promote makes streams of the mirrors, and returns the number of the last mirrored event. The server finds the ids of
// mirrored events once it has restarted: without that JetStream would not drop second events.
func (r *regions) promote() uint64 {
	t := r.second.T
	t.Helper()
	if !r.mirrored {
		return 0
	}
	for name, subjects := range mirroredStreams() {
		// A request may get no answer while the server finds out that the other region is gone.
		testenv.Eventually(t, system.Patience, func() error {
			stream, err := r.second.JS.Stream(t.Context(), name)
			if err != nil {
				return err
			}
			config := stream.CachedInfo().Config
			config.Mirror, config.Subjects, config.Duplicates = nil, []string{subjects}, regionWindow
			_, err = r.second.JS.UpdateStream(t.Context(), config)
			return err
		}, "the promotion of "+name)
	}
	r.second.NATS.Restart()
	return r.second.LastEvent()
}

// count waits until the second region has fired all that is due, and counts. It has the events up to a number from the
// first region.
func (r *regions) count(mirrored uint64) (got regionLosses) {
	t := r.second.T
	t.Helper()
	c := r.second.Collect()
	fired := c.WaitFunc(system.Patience, func(all []testenv.Message) error {
		n := 0
		for _, m := range all {
			if strings.HasPrefix(m.Subject, "timers.fired.shop.held.") {
				n++
			}
		}
		due, err := r.second.RDB.ZCount(t.Context(), keys.Single.Due(), "-inf",
			fmt.Sprint(r.second.Now())).Result()
		firing := r.second.RDB.ZCard(t.Context(), keys.Single.Firing()).Val()
		if err == nil && (n < regionHeld || due+firing > 0 || r.second.LastEvent() != uint64(len(all))) {
			err = fmt.Errorf("%d held ones fired, %d due, %d firing", n, due, firing)
		}
		return err
	})
	got.timers = regionLate - int(r.second.RDB.ZCard(t.Context(), keys.Single.Due()).Val())
	for _, m := range r.collector.All() {
		same := slices.IndexFunc(fired, func(o testenv.Message) bool { return o.ID() == m.ID() })
		switch {
		case same < 0:
			got.events++
		case fired[same].Seq > mirrored:
			got.doubled++
		}
	}
	got.doubled += len(c.DuplicateIDs())
	return got
}
