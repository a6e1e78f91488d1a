package notify_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/policy"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/notify"
	"github.com/timerd-io/timerd/schedule"
)

// lateKey returns a timer's key on a subject of its own.
func lateKey(typ string, id int) keys.Key {
	return keys.Key{App: "app1", Module: "late", Type: typ, ID: fmt.Sprint(id)}
}

// lateFiring returns a firing claimed now; by is the time since it was due.
func lateFiring(k keys.Key, by time.Duration, limit policy.Limit) schedule.Firing {
	f := firing(k, `{"order":42}`)
	f.Due = schedule.MillisOf(f.ClaimedAt.Add(-by))
	f.Ref = fmt.Sprintf("%d::%s", f.Due, k)
	f.Late = limit
	return f
}

func most(d time.Duration) policy.Limit { return policy.Limit{Given: true, Most: d} }
func drop(d time.Duration) policy.Limit { return policy.Limit{Given: true, Most: d, Drop: true} }

// deadLetters waits for exactly n dead letters and returns them by the ids of their timers.
func (r *running) deadLetters(t *testing.T, n int) map[string]event.Event {
	t.Helper()
	letters := map[string]event.Event{}
	for _, m := range testenv.Collect(t, r.js, "TIMERS_DEAD").Wait(n, patience) {
		e, err := event.Parse(m.Data)
		if err != nil || e.Type != event.TypeDead || m.ID() != e.ID || m.Subject != e.Key.Subject("timers", keys.Dead) {
			t.Fatalf("dead letter %s on %s: %v", m.Data, m.Subject, err)
		}
		letters[e.Key.ID] = e
	}
	return letters
}

// A firing claimed later than its limit does not fire; at the limit it does.
func TestTooLateToFire(t *testing.T) {
	t.Parallel()
	nats := testenv.NATS(t)
	const limit = 432 * time.Second
	const above = limit + 300*time.Millisecond
	rules, err := policy.ParseLimits("app1:late:otp=7m12s drop; app1:late:pay=7m12s; app1:late:*=0")
	if err != nil {
		t.Fatal(err)
	}
	r := start(t, nats, nats.URL(), nil, func(p *notify.Publisher) {
		p.Late = rules
		p.MaxAttempts = func(keys.Key) int { return 3 }
	})
	const dead, gone, fires = "dead", "dropped", "fires"
	reason := "late: 7m12.3s after its due time, at most 7m12s"
	maybe := reason + "; may have been published"
	var all []schedule.Firing
	want := map[string]struct{ fate, reason string }{}
	add := func(fate, reason, typ string, by time.Duration, own policy.Limit, mayBeStored bool) {
		f := lateFiring(lateKey(typ, len(all)), by, own)
		f.MayBeStored = mayBeStored
		want[f.Key.ID] = struct{ fate, reason string }{fate, reason}
		all = append(all, f)
	}
	add(fires, "", "a", limit, most(limit), false)
	add(fires, "", "a", limit, drop(limit), true)
	add(dead, "late: 7m12.001s after its due time, at most 7m12s", "a", limit+time.Millisecond, most(limit), false)
	add(gone, "", "a", limit+time.Millisecond, drop(limit), false)
	add(dead, reason, "a", above, most(limit), false)
	add(dead, maybe, "a", above, most(limit), true)
	add(dead, maybe, "a", above, drop(limit), true)
	add(fires, "", "a", 48*time.Hour, policy.Limit{Given: true}, false)
	// A firing without a limit takes the rules' limit; its own limit wins.
	add(dead, reason, "pay", above, policy.Limit{}, false)
	add(fires, "", "pay", limit, policy.Limit{}, false)
	add(fires, "", "pay", above, policy.Limit{Given: true}, false)
	add(gone, "", "otp", above, policy.Limit{}, false)
	add(dead, maybe, "otp", above, policy.Limit{}, true)
	add(fires, "", "other", 48*time.Hour, policy.Limit{}, false)
	r.publish(t, all...)
	r.settler.expect(t, len(all), 0)

	fired := map[string]event.Event{}
	letters := r.deadLetters(t, 6)
	for _, m := range testenv.Collect(t, r.js, "TIMERS").Wait(6, patience) {
		e, err := event.Parse(m.Data)
		if err != nil {
			t.Fatal(err)
		}
		fired[e.Key.ID] = e
	}
	for _, f := range all {
		id := f.Key.ID
		e, isFired := fired[id]
		letter, isDead := letters[id]
		if is := (map[bool]string{isFired: fires, isDead: dead})[true]; is != want[id].fate &&
			(is != "" || want[id].fate != gone) {
			t.Errorf("%s by %v with %+v: %q, want %q", f.Key, f.ClaimedAt.Sub(f.Due.Time()), f.Late, is, want[id].fate)
			continue
		}
		if isDead {
			e = letter
		}
		if (isFired || isDead) && (e.Late != f.Late || e.DeadReason != want[id].reason ||
			string(e.Data) != `{"order":42}` || e.Attempt != 1 || e.MaxAttempts != 3 ||
			e.ID != keys.EventID(f.Key.String(), int64(f.Due), 1)) {
			t.Errorf("%s: %+v, want the reason %q", f.Key, e, want[id].reason)
		}
	}
	r.stop(t)
	late := r.metrics.counts().late
	for id, w := range want {
		if action := late[id]; action != map[string]notify.LateAction{dead: notify.LateDead,
			gone: notify.LateDrop}[w.fate] {
			t.Errorf("it told %q of the timer %s, which is %s", action, id, w.fate)
		}
	}
	if n := r.metrics.counts().tooLate; n != 8 {
		t.Errorf("it told of %d timers, want 8", n)
	}
	if c := r.metrics.counts(); c.fired != 6 {
		t.Errorf("%d count as fired", c.fired)
	}
}

// A claim whose lease ran out, or that was given back without a clear answer, may have been published; one given back
// untried was not.
func TestLateAndPerhapsPublished(t *testing.T) {
	t.Parallel()
	p, nats := testenv.NewSchedule(t), testenv.NATS(t)
	r := start(t, nats, nats.URL(), p, nil)
	set := func(id string, args ...any) {
		t.Helper()
		if err := p.Client.FCall(t.Context(), "timer_set", []string{"app1:late:a:" + id},
			append([]any{"x", "PX", 1}, args...)...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	set("reclaimed", "LATE", 5, "DROP")
	p.Claim(1, 20*time.Millisecond) // and its owner dies
	reclaimed := p.Claim(1, lease)
	set("unclear", "LATE", 5, "DROP")
	set("untried", "LATE", 5)
	set("untried-dropped", "LATE", 5, "DROP")
	back := p.Claim(3, time.Hour)
	for i := range back {
		back[i].MayBeStored = back[i].Key.ID == "unclear"
	}
	if err := p.Release(t.Context(), schedule.Outcomes(schedule.OutcomeGivenBack, back...)); err != nil {
		t.Fatal(err)
	}
	until := time.Now().Add(10 * time.Millisecond)
	testenv.Eventually(t, patience, func() bool { return time.Now().After(until) }, "a few ms to pass")
	again := p.Claim(3, lease)
	r.publish(t, append(reclaimed, again...)...)
	p.WaitEmpty()
	letters := r.deadLetters(t, 3)
	for id, maybe := range map[string]bool{"reclaimed": true, "unclear": true, "untried": false} {
		if reason := letters[id].DeadReason; !strings.HasPrefix(reason, event.ReasonLate) ||
			strings.HasSuffix(reason, "; may have been published") != maybe {
			t.Errorf("%s: the reason is %q; perhaps published: %v", id, reason, maybe)
		}
	}
}

// deadStream changes the stream of dead letters.
func (r *running) deadStream(t *testing.T, change func(*jetstream.StreamConfig)) {
	t.Helper()
	stream, err := r.js.Stream(t.Context(), "TIMERS_DEAD")
	if err != nil {
		t.Fatal(err)
	}
	config := stream.CachedInfo().Config
	change(&config)
	if _, err := r.js.UpdateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
}

// While the stream takes no dead letters, timers that are too late wait aside, and delay no others.
func TestLateWhereNoDeadLetterIsTaken(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]struct{ begin, end func(*testing.T, *running) }{
		"full": {
			func(t *testing.T, r *running) {
				r.deadStream(t, func(c *jetstream.StreamConfig) { c.MaxMsgs, c.Discard = 1, jetstream.DiscardNew })
				if _, err := r.js.Publish(t.Context(), "timers.dead.a.b.c", nil); err != nil {
					t.Fatal(err)
				}
			},
			func(t *testing.T, r *running) { r.deadStream(t, func(c *jetstream.StreamConfig) { c.MaxMsgs = -1 }) },
		},
		"missing": {
			func(t *testing.T, r *running) {
				if err := r.js.DeleteStream(t.Context(), "TIMERS_DEAD"); err != nil {
					t.Fatal(err)
				}
				// Nor can it be made again.
				if _, err := r.js.CreateStream(t.Context(),
					jetstream.StreamConfig{Name: "OTHER", Subjects: []string{"timers.dead.x.y.z"}}); err != nil {
					t.Fatal(err)
				}
			},
			func(t *testing.T, r *running) {
				if err := r.js.DeleteStream(t.Context(), "OTHER"); err != nil {
					t.Fatal(err)
				}
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, nats := testenv.NewSchedule(t), testenv.NATS(t)
			r := start(t, nats, nats.URL(), p, func(p *notify.Publisher) {
				p.Window = 64
			})
			fault.begin(t, r)
			p.SetDue(200)
			tooLate := p.Claim(200, lease)
			for i := range tooLate {
				tooLate[i].Late, tooLate[i].Due = most(time.Millisecond), tooLate[i].Due-2
			}
			r.publish(t, tooLate...)
			<-r.metrics.asides
			onTime := firings(1000, 500, "x")
			for batch := range slices.Chunk(onTime, 50) {
				r.publish(t, batch...)
			}
			checkStream(t, testenv.Collect(t, r.js, "TIMERS"), onTime)
			if n := r.metrics.counts().tooLate; n != 0 {
				t.Errorf("%d count as dead", n)
			}
			testenv.Eventually(t, patience, func() bool { return r.InFlight() == 0 }, "an empty window")
			if _, firing := p.Count(); firing != 200 {
				t.Errorf("%d are left in the schedule, want 200", firing)
			}
			if n := p.Client.ZCard(t.Context(), keys.Single.Refused()).Val(); n == 0 {
				t.Error("none is listed as set aside")
			}
			r.healthy(t, patience, "")

			fault.end(t, r)
			testenv.Eventually(t, 2*patience, func() error {
				for _, f := range p.Claim(0, lease) {
					f.Late, f.Due = most(time.Millisecond), f.Due-1000
					r.publish(t, f)
				}
				if _, firing := p.Count(); firing > 0 {
					return fmt.Errorf("%d are left", firing)
				}
				return nil
			}, "dead letters of all")
			if n := p.Client.ZCard(t.Context(), keys.Single.Refused()).Val(); n != 0 {
				t.Errorf("%d are still set aside", n)
			}
			if n := r.metrics.counts().tooLate; n != 200 {
				t.Errorf("%d count as dead, want 200", n)
			}
		})
	}
}

// NATS does not answer a denied dead letter; dead letters on other subjects are stored meanwhile.
func TestLateWhereSomeDeadLettersAreDenied(t *testing.T) {
	t.Parallel()
	nats := testenv.NATS(t, denying("timers.dead.app1.late.denied"))
	r := start(t, nats, asTimerd(nats), nil, func(p *notify.Publisher) {
		p.AckWait = 3 * time.Second // for the denied ones
		p.Window = 400
	})
	for i := range 50 {
		r.publish(t, lateFiring(lateKey("denied", i), time.Hour, most(time.Minute)),
			lateFiring(lateKey("granted", i), time.Hour, most(time.Minute)))
	}
	r.deadLetters(t, 50)
	for range 2 {
		if typ := (<-r.metrics.asides).Key.Type; typ != "denied" {
			t.Errorf("%s was set aside", typ)
		}
	}
	r.settler.expect(t, 50, 50)
	r.settler.mu.Lock()
	defer r.settler.mu.Unlock()
	if r.settler.stored == 0 {
		t.Error("no letter without an answer counts as perhaps stored")
	}
}

// Dead letters without an answer fill only their part of the window; other timers fire.
func TestLateLettersWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	nats := testenv.NATS(t, denying("timers.dead.>"))
	r := start(t, nats, asTimerd(nats), nil, func(p *notify.Publisher) {
		p.DrainTimeout, p.Window = 100*time.Millisecond, 64
	})
	var tooLate []schedule.Firing
	for i := range 200 {
		tooLate = append(tooLate, lateFiring(lateKey("a", i), time.Hour, most(time.Minute)))
	}
	r.publish(t, tooLate...)
	all := firings(0, 200, "x")
	r.publish(t, all...)
	checkStream(t, testenv.Collect(t, r.js, "TIMERS"), all)
	r.settler.expect(t, 200, 184)
	if n := r.InFlight(); n != 16 {
		t.Errorf("%d are in the window, want the 16 that have no answer", n)
	}
}

// denying has a server deny some subjects to the user timerd. All other users are let in without a name.
func denying(subjects ...string) testenv.NATSOption {
	return func(o *server.Options) {
		o.Users = []*server.User{
			{Username: "timerd", Password: "x",
				Permissions: &server.Permissions{Publish: &server.SubjectPermission{Allow: []string{">"},
					Deny: subjects}}},
			{Username: "all", Password: "x"},
		}
		o.NoAuthUser = "all"
	}
}

// asTimerd returns the server's URL for the user timerd.
func asTimerd(nats *testenv.NATSServer) string {
	return strings.Replace(nats.URL(), "nats://", "nats://timerd:x@", 1)
}

// Many dead letters at once fill their part of the window, and others go on.
func TestManyAreTooLate(t *testing.T) {
	t.Parallel()
	nats := testenv.NATS(t)
	r := start(t, nats, nats.URL(), nil, func(p *notify.Publisher) {
		p.Window = 256
	})
	r.publish(t, lateFiring(lateKey("a", 0), time.Hour, most(time.Minute)))
	r.settler.expect(t, 1, 0)
	const many = 1500
	var all []schedule.Firing
	for i := 1; i < many; i++ {
		all = append(all, lateFiring(lateKey("a", i), time.Hour, most(time.Minute)))
	}
	all = append(all, firings(0, 100, "x")...)
	// If NATS was slow for a second, some are given back and claimed again.
	given := 1
	for left := all; len(left) > 0; left = r.settler.claimAgain(left) {
		for batch := range slices.Chunk(left, 128) {
			if err := r.Wait(t.Context(), ""); err != nil {
				t.Fatal(err)
			}
			r.publish(t, batch...)
		}
		given += len(left)
		testenv.Eventually(t, longWait, func() bool {
			settled, released, _ := r.settler.counts()
			return settled+released == given
		}, "all to be settled or given back")
	}
	_, released, _ := r.settler.counts()
	r.settler.expect(t, many+100, released)
	r.deadLetters(t, many)
	checkStream(t, testenv.Collect(t, r.js, "TIMERS"), all[many-1:])
	if n := r.metrics.counts().tooLate; n != many {
		t.Errorf("%d count as late", n)
	}
}

// A dead letter is stored once however often its firing is claimed, and also if somebody else took its id.
func TestLateLettersAreStoredOnce(t *testing.T) {
	t.Parallel()
	nats := testenv.NATS(t)
	r := start(t, nats, nats.URL(), nil, nil)
	f, forged := lateFiring(lateKey("a", 0), time.Hour, most(time.Minute)), lateFiring(lateKey("a", 1), time.Hour,
		most(time.Minute))
	message := forgery(forged)
	if _, err := r.js.PublishMsg(t.Context(), message); err != nil {
		t.Fatal(err)
	}
	r.publish(t, f)
	r.settler.expect(t, 1, 0)
	again := f
	again.MayBeStored, again.ClaimedAt = true, f.ClaimedAt.Add(time.Second)
	again.Ref += " again" // for the settler of this test
	r.publish(t, again, forged)
	r.settler.expect(t, 3, 0)
	c := testenv.Collect(t, r.js, "TIMERS_DEAD")
	c.Wait(3, patience)
	c.Stays(3, 50*time.Millisecond)
}

// forgery returns a message of somebody else under the id of a firing's dead letter.
func forgery(f schedule.Firing) *nats.Msg {
	m := nats.NewMsg("timers.dead.a.b.c")
	m.Header.Set(nats.MsgIdHdr, keys.EventID(f.Key.String(), int64(f.Due), 1))
	return m
}

// A stopping publisher finishes the dead letters under way, and gives the rest back.
func TestStopsWithLateFirings(t *testing.T) {
	t.Parallel()
	for name, works := range map[string]bool{"in time": true, "never": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			denied := "nothing"
			if !works {
				denied = "timers.dead.>"
			}
			nats := testenv.NATS(t, denying(denied))
			r := start(t, nats, asTimerd(nats), nil, func(p *notify.Publisher) {
				if !works {
					p.DrainTimeout = 4 * time.Second // a quarter of it is for giving back
				}
			})
			var all []schedule.Firing
			for i := range 50 {
				all = append(all, lateFiring(lateKey("a", i), time.Hour, most(time.Minute)))
			}
			r.publish(t, all...)
			r.stop(t)
			settled, released, _ := r.settler.counts()
			if works && settled != 50 || !works && released != 50 {
				t.Errorf("%d settled and %d released", settled, released)
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			if err := r.Publish(ctx, all[:1]); !errors.Is(err, notify.ErrStopped) {
				t.Errorf("Publish after the end: %v", err)
			}
		})
	}
}
