package schedule_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// becomesDue has the pending occurrence of k become due by now, as if that had been its time.
func (x *index) becomesDue() {
	x.t.Helper()
	x.do("DEL", k)
	x.do("ZADD", keys.Single.Due(), "XX", x.redisNow()-1, k)
}

// nextIs checks the pending timer of k, by the index, its key and timer_get.
func (x *index) nextIs(due int64, said string) {
	x.t.Helper()
	if index, key := x.pendingAt(); index != due || key != due {
		x.t.Errorf("due at %d, its key at %d, want %d", index, key, due)
	}
	if got := fmt.Sprint(x.do("FCALL_RO", "timer_get", 1, k)); !strings.HasSuffix(got, " "+said+"]") {
		x.t.Errorf("timer_get: %s, want %s", got, said)
	}
}

// An occurrence that was set aside though its key had been given a later TTL goes on with its repetition
// when timerd may read the key, also if that was taken in before.
func TestOccurrenceSetAsideGoesOn(t *testing.T) {
	t.Parallel()
	x := newNarrowIndex(t)
	x.do("ACL", "SETUSER", "timerd", "~*")
	x.do("FCALL", "timer_repeat", 1, denied, "p", "EVERY", 60000)
	x.do("SET", denied, "v", "PX", 600_000)
	x.observe(touched(denied))
	x.do("ACL", "SETUSER", "timerd", "resetkeys", "~app1:*", "~timerd:*")
	x.do("ZADD", keys.Single.Due(), "XX", x.redisNow()-1, denied)
	x.setAside(1)
	x.do("ACL", "SETUSER", "timerd", "~*")
	x.observe(touched(denied))
	x.grant()
	x.setAside(0)
	if got := fmt.Sprint(x.do("FCALL_RO", "timer_get", 1, denied)); !strings.HasSuffix(got,
		"payload v state pending repeat every 1m0s occurrence 1]") {
		t.Errorf("timer_get: %s", got)
	}
}

// The lease of the first timerd ran out, so two have the same occurrence. They settle it at once, each twice.
func TestOccurrenceIsSettledByTwo(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	first := x.repeats("p", "EVERY", 60000)
	serial := x.do("ZSCORE", keys.Single.Repeat(), k).(float64)
	for n := range int64(20) {
		x.becomesDue()
		late := x.claimFor(time.Millisecond).Firings
		x.awaitClock(x.redisNow() + 2)
		again := x.occurs(fmt.Sprintf("every 1m0s %d p", n+1))
		if len(late) != 1 || late[0].Ref != again.Ref || again.Trigger != schedule.TriggerReclaim {
			t.Fatalf("claimed %+v, then %+v", late, again)
		}
		var wg sync.WaitGroup
		for i := range 4 {
			s := schedule.New(x.rdb, 1000)
			wg.Go(func() {
				if err := s.Settle(t.Context(),
					schedule.Outcomes(schedule.OutcomeFired, []schedule.Firing{late[0], again}[i%2])); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		x.nextIs(first+(n+1)*60000, fmt.Sprintf("payload p state pending repeat every 1m0s occurrence %d", n+2))
		got := x.do("ZSCORE", keys.Single.Repeat(), k).(float64)
		if got <= serial {
			t.Errorf("the serial is %.0f after %d settlements, want more than %.0f", got, n+1, serial)
		}
		serial = got
	}
	if n := x.do("ZCARD", keys.Single.Due()); n != int64(1) {
		t.Errorf("%v timers wait, want 1", n)
	}
}

// If a timerd's database lacks the zone of a plan, another timerd is told to look for its time.
func TestPlanIsLeftToAnother(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	first := x.repeats("p", "EVERY", 60000)
	x.becomesDue()
	f := x.occurs("every 1m0s 1 p")
	wake := x.rdb.Subscribe(t.Context(), keys.WakeChannel)
	defer wake.Close()
	if _, err := wake.Receive(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.Occurrence.Repeat = "cron @hourly Nowhere/Else"
	x.settle(f)
	select {
	case m := <-wake.Channel():
		if m.Payload != "t 0" {
			t.Errorf("announced %q, want something at once", m.Payload)
		}
	case <-time.After(time.Minute):
		t.Error("the plan was not announced")
	}
	x.stateIs(k, "pending p")
	x.claims()
	x.nextIs(first+60000, "payload p state pending repeat every 1m0s occurrence 2")
}

// transaction runs each script of a client in a transaction, after some commands and before others.
type transaction struct {
	client        *redis.Client // by which it is run
	before, after func(pipe redis.Pipeliner)
}

func (*transaction) DialHook(next redis.DialHook) redis.DialHook { return next }

func (w *transaction) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() != "evalsha" && cmd.Name() != "eval" {
			return next(ctx, cmd)
		}
		_, _ = w.client.TxPipelined(ctx, func(pipe redis.Pipeliner) error { // cmd has its error
			w.before(pipe)
			defer w.after(pipe)
			return pipe.Process(ctx, cmd)
		})
		return cmd.Err()
	}
}

func (*transaction) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// A plan has the ref of an earlier one that was claimed and replaced in the same ms. The claimer of the
// earlier plan arms nothing for the new one, and leaves it.
func TestPlansOfTheSameMillisecond(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	// A claim between two plans, all in one transaction: a busy machine may be long between two calls.
	plan := func(pipe redis.Pipeliner, expression, zone string) *redis.StringSliceCmd {
		pipe.FCall(t.Context(), "timer_repeat", []string{k}, "p", "CRON", expression, "TZ", zone)
		return pipe.ZRange(t.Context(), keys.Single.Firing(), 0, 0)
	}
	var older, newer *redis.StringSliceCmd
	between := &transaction{
		client: x.rdb,
		// it stays claimed, as it cannot be planned
		before: func(pipe redis.Pipeliner) { older = plan(pipe, "@hourly", "Nowhere/Else") },
		after:  func(pipe redis.Pipeliner) { newer = plan(pipe, "30 4 2 7 *", "UTC") },
	}
	claims := redis.NewClient(&redis.Options{Addr: x.rdb.Options().Addr})
	t.Cleanup(func() { _ = claims.Close() })
	claims.AddHook(between)
	n := onlyNode(t, schedule.New(claims, 1000))
	n.HearSince(0)
	var claimed []schedule.Firing
	testenv.Eventually(t, time.Minute, func() error {
		c := n.ClaimInFull(t.Context(), schedule.ClaimRequest{Partition: keys.Single}, lease)
		claimed = c.Firings
		if c.Err == nil && (len(older.Val()) != 1 || !slices.Equal(older.Val(), newer.Val())) {
			return fmt.Errorf("plans %q and %q", older.Val(), newer.Val())
		}
		return c.Err
	}, "two plans of the same ms")
	if len(claimed) != 1 {
		t.Fatalf("claimed %+v, want a plan", claimed)
	}
	x.settle(claimed[0])
	x.stateIs(k, "pending p")
	x.claims()
	index, _ := x.pendingAt()
	if at := time.UnixMilli(index).UTC(); at.Format("2 Jan 15:04") != "2 Jul 04:30" {
		t.Errorf("due at %s, by the plan that was replaced", at)
	}
}

// A repetition that is to be planned is pending, and no hold keeps it from that.
func TestPlansAreNotHeld(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.hold("app1")
	x.do("FCALL", "timer_repeat", 1, k, "p", "CRON", "0 0 1 1 *")
	x.stateIs(k, "pending p")
	for _, call := range []string{"timer_set", "timer_repeat"} {
		args := []any{"FCALL", call, 1, k, "p", "PX", 100, "NX"}
		if call == "timer_repeat" {
			args[5] = "EVERY"
		}
		if got := x.do(args...); got != nil {
			t.Errorf("%s NX: %v, want nil", call, got)
		}
	}
	x.claims()
	index, key := x.pendingAt()
	if at := time.UnixMilli(index).UTC(); key != index || at.YearDay() != 1 || at.Hour() != 0 {
		t.Errorf("due at %s, its key at %d", at, key)
	}
}

// A plan that ends before anybody claims it leaves nothing behind: for a name in owed each claim would look twice.
func TestEndedPlansAreNotOwed(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	for _, end := range [][]any{
		{"FCALL", "timer_set", 1, k, "p", "PX", 60000},
		{"FCALL", "timer_repeat", 1, k, "p", "EVERY", 60000},
		{"FCALL", "timer_cancel", 1, k},
	} {
		x.do("FCALL", "timer_repeat", 1, k, "p", "CRON", "0 0 1 1 *")
		x.do(end...)
		if owed := x.do("ZRANGE", keys.Single.Owed(), 0, -1); fmt.Sprint(owed) != "[]" {
			t.Errorf("after %v %v is owed", end[1], owed)
		}
	}
	x.isEmpty()
}

// While it is held one occurrence waits, however many fall due.
func TestHeldOccurrencesDoNotPileUp(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	var skipped skips
	x.Agenda = &skipped
	x.hold("app1")
	first := x.repeats("p", "EVERY", 100)
	for range 5 {
		x.awaitClock(x.redisNow() + 100)
		x.claims()
	}
	x.stateIs(k, "held p")
	if n := x.do("ZCARD", keys.Single.Firing()); n != int64(1) {
		t.Errorf("%v wait, want 1", n)
	}
	l, h := x.resume("app1", schedule.Resume{Kind: schedule.ResumeNow})
	x.release(l, h, &schedule.Draw{})
	f := x.occurs("every 100ms 1 p")
	if int64(f.Due) != first {
		t.Errorf("due %d, want %d", f.Due, first)
	}
	x.settle(f)
	index, _ := x.pendingAt()
	if missed := (index-first)/100 - 1; (index-first)%100 != 0 || missed < 4 || skipped.Load() != missed {
		t.Errorf("the next one is due %d ms later, and %d were skipped", index-first, skipped.Load())
	}
}

func TestHeldOccurrenceIsCancelled(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.hold("app1")
	x.repeats("p", "EVERY", 60000)
	x.becomesDue()
	x.claims()
	if got := x.do("FCALL", "timer_cancel", 1, k); got != "cancelled" {
		t.Errorf("timer_cancel: %v", got)
	}
	if n := x.do("EXISTS", keys.Single.Repeat(), keys.Single.Due(), keys.Single.Firing()); n != int64(0) {
		t.Error("the repetition goes on")
	}
}

// resume --shift moves the occurrence that waited, and none after it; resume --dead does not count it.
func TestResumesOfOccurrences(t *testing.T) {
	t.Parallel()
	for kind, number := range map[schedule.ResumeKind]int{schedule.ResumeShift: 2, schedule.ResumeDead: 1} {
		x := newIndex(t)
		x.hold("app1")
		x.awaitClock(x.redisNow() + 500) // so far it is shifted
		first := x.repeats("p", "EVERY", 60000, "LATE", 50)
		x.becomesDue()
		x.claims()
		l, h := x.resume("app1", schedule.Resume{Kind: kind})
		if n := x.release(l, h, &schedule.Draw{}); n != 1 {
			t.Fatalf("%s: %d released", kind, n)
		}
		if kind == schedule.ResumeShift {
			index, key := x.pendingAt()
			if index == 0 || key != index {
				t.Errorf("%s: due at %d, its key at %d", kind, index, key)
			}
			x.nextIs(index, "payload p state pending late 50 repeat every 1m0s occurrence 1")
			x.awaitClock(index)
		}
		f := x.occurs("every 1m0s 1 p")
		if f.Held != (kind == schedule.ResumeDead) {
			t.Errorf("%s: held: %v", kind, f.Held)
		}
		outcome := schedule.OutcomeFired
		if f.Held {
			outcome = schedule.OutcomeUnfired
		}
		x.settleAs(f, outcome)
		x.nextIs(first+60000, fmt.Sprintf("payload p state pending late 50 repeat every 1m0s occurrence %d", number))
	}
}

// An occurrence that is set again while the repetition that replaced its own is still to be planned does not take the
// key.
func TestShiftedOccurrenceBesideANewRepetition(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.hold("app1")
	x.awaitClock(x.redisNow() + 500) // so far it is shifted
	x.repeats("old", "EVERY", 60000)
	x.becomesDue()
	x.claims()
	x.do("FCALL", "timer_repeat", 1, k, "new", "CRON", "0 0 1 1 *")
	l, h := x.resume("app1", schedule.Resume{Kind: schedule.ResumeShift})
	x.release(l, h, &schedule.Draw{})
	x.claims()
	index, _ := x.pendingAt()
	if at := time.UnixMilli(index).UTC(); at.YearDay() != 1 || at.Hour() != 0 {
		t.Errorf("due at %s, want the new year", at)
	}
	x.nextIs(index, "payload new state pending repeat cron 0 0 1 1 * UTC occurrence 1")
	var f schedule.Firing
	for deadline := time.Now().Add(time.Minute); f.Ref == "" && time.Now().Before(deadline); {
		for _, f = range x.claimFor(lease).Firings {
		}
	}
	if string(f.Payload) != "old" {
		t.Fatalf("claimed %+v, want the old occurrence", f)
	}
	x.settle(f)
	x.nextIs(index, "payload new state pending repeat cron 0 0 1 1 * UTC occurrence 1")
}

// An occurrence that is being made up for has no key. A key set meanwhile is the next one, and does not change it.
func TestKeySetWhileOccurrencesAreMadeUpFor(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	first := x.repeats("p", "EVERY", 100, "CATCHUP", 60000)
	x.awaitClock(first + 200)
	x.settle(x.occurs("every 100ms 1 p"))
	if index, key := x.pendingAt(); index != first+100 || key != 0 {
		t.Fatalf("due at %d, its key at %d, want %d without a key", index, key, first+100)
	}
	at := x.redisNow() + 3_600_000
	x.do("SET", k, "new", "PXAT", at)
	x.observe(touched(k))
	f := x.occurs("every 100ms 2 p")
	if int64(f.Due) != first+100 {
		t.Errorf("due %d, want %d", f.Due, first+100)
	}
	x.settle(f)
	x.nextIs(at, "payload new state pending repeat every 100ms occurrence 3")
}

// An occurrence that fires at another time than its own is noted. If another firing has its id, it comes a little
// later, and later ones do not.
func TestOccurrencesShareNoID(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	first := x.repeats("p", "EVERY", 60000)
	noted := func(due int64) string { return fmt.Sprintf(":i:%d:%s", due, k) }
	for _, taken := range []int64{60000, 60001} {
		x.do("ZADD", keys.Single.Fired(), x.redisNow(), noted(first+taken))
	}
	x.becomesDue()
	f := x.occurs("every 1m0s 1 p")
	x.settle(f)
	x.nextIs(first+60003, "payload p state pending repeat every 1m0s occurrence 2")
	if got := x.do("ZSCORE", keys.Single.Fired(), noted(int64(f.Due))); got == nil {
		t.Errorf("that one fired at %d, which was not its time, is not noted", f.Due)
	}
	x.becomesDue()
	x.settle(x.occurs("every 1m0s 2 p"))
	x.nextIs(first+120000, "payload p state pending repeat every 1m0s occurrence 3")
}
