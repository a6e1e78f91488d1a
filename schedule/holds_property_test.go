package schedule_test

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/timerd-io/timerd/internal/policy"
	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// holdModel plays random steps of holds, resumes, claims, moves, cancellations and guards, and knows the right fate of
// every timer. Each step may be the last one of a timerd that dies.
type holdModel struct {
	*index
	rt     *rapid.T
	n      int
	open   map[string]bool // payloads of timers that neither fired nor were cancelled
	of     map[string]string
	ended  map[string]string // payload -> its fate
	guards map[string]policy.Guards
	said   map[string]policy.Refusal // of the guards that have said no
	lists  []*schedule.HoldList
	found  []schedule.Which
	places map[string]schedule.HeldAt
}

func (m *holdModel) key() string {
	return fmt.Sprintf("%s:t:%d", rapid.SampledFrom([]string{"shop:order", "shop:basket", "pay:card"}).Draw(m.rt, "of"),
		rapid.IntRange(0, 5).Draw(m.rt, "id"))
}

func (m *holdModel) namespace() keys.Namespace {
	return namespace(m.t,
		rapid.SampledFrom([]string{"shop", "shop:order", "pay:card:t", "*:order", "*"}).Draw(m.rt, "namespace"))
}

// set sets a timer, which replaces the pending one of its key.
func (m *holdModel) set() {
	key := m.key()
	before := m.do("HGET", keys.Single.Data(), key)
	m.n++
	payload := fmt.Sprintf("p%d", m.n)
	args := []any{payload, "PX", rapid.IntRange(1, 30).Draw(m.rt, "ms")}
	var guards policy.Guards
	if guards.Unless = rapid.SampledFrom([]string{"", "", "g1", "g2"}).Draw(m.rt, "unless"); guards.Unless != "" {
		args = append(args, "UNLESS", guards.Unless)
	}
	if guards.If = rapid.SampledFrom([]string{"", "", "", "g1"}).Draw(m.rt, "if"); guards.If != "" {
		args = append(args, "IF", guards.If)
	}
	if guards == (policy.Guards{}) && strings.HasPrefix(key, "pay:") {
		guards.Unless = "g2:t" // see TestRandomHolds
	}
	due := m.rdb.FCall(m.t.Context(), "timer_set", []string{key}, args...)
	if due.Err() != nil {
		m.rt.Fatal(due.Err())
	}
	if text, ok := before.(string); ok { // replaced, unless it was due already
		_, was, _ := strings.Cut(text, ":")
		kept := false
		for _, record := range m.rdb.HVals(m.t.Context(), keys.Single.FiringData()).Val() {
			kept = kept || record == text
		}
		if !kept && m.open[was] {
			delete(m.open, was)
			m.ended[was] = "replaced"
		}
	}
	m.open[payload], m.of[payload], m.guards[payload] = true, key, guards
}

// guard sets or removes the key of a guard.
func (m *holdModel) guard() {
	name := rapid.SampledFrom([]string{"g1", "g2", "g2:t"}).Draw(m.rt, "guard")
	if m.do("DEL", name) == int64(0) {
		m.do("SET", name, "")
	}
}

// judge checks the answer of a firing's guards: at the first claim the present keys count, and a refusal is final.
func (m *holdModel) judge(f *schedule.Firing) {
	payload := string(f.Payload)
	want, final := m.said[payload]
	if guards := m.guards[payload]; !final && !f.MayBeStored {
		switch {
		case guards.Unless != "" && m.do("EXISTS", guards.Unless) == int64(1):
			want = policy.Refusal{Guard: guards.Unless}
		case guards.If != "" && m.do("EXISTS", guards.If) == int64(0):
			want = policy.Refusal{Guard: guards.If, Missing: true}
		}
	}
	if f.Refusal != want {
		m.rt.Fatalf("%s %s, may be stored: %v, was claimed with %+v, want %+v", f.Ref, payload, f.MayBeStored,
			f.Refusal, want)
	}
	if want != (policy.Refusal{}) {
		m.said[payload] = want
	}
}

func (m *holdModel) cancel() {
	key := m.key()
	if m.do("FCALL", "timer_cancel", 1, key) != "cancelled" {
		return
	}
	left := map[string]bool{}
	for _, name := range []string{keys.Single.Data(), keys.Single.FiringData()} {
		for _, record := range m.rdb.HVals(m.t.Context(), name).Val() {
			for payload := range m.open {
				if len(record) > len(payload) && record[len(record)-len(payload)-1:] == ":"+payload {
					left[payload] = true
				}
			}
		}
	}
	for payload := range m.open {
		if m.of[payload] == key && !left[payload] {
			delete(m.open, payload)
			m.ended[payload] = "cancelled"
		}
	}
}

// move moves one of the timers, perhaps as found some time ago, to another due time.
func (m *holdModel) move() {
	if len(m.found) == 0 || rapid.Bool().Draw(m.rt, "look") {
		m.found = nil
		err := list(m.t, m.Schedule, keys.Namespace{}, func(timer query.Timer) bool {
			m.found = append(m.found, timer.Which())
			return true
		})
		if err != nil {
			m.rt.Fatal(err)
		}
	}
	if len(m.found) == 0 {
		return
	}
	move := schedule.Move{Which: rapid.SampledFrom(m.found).Draw(m.rt, "timer")}
	if ms := rapid.IntRange(0, 30).Draw(m.rt, "ms"); ms > 0 {
		move.To = time.UnixMilli(m.redisNow() + int64(ms))
	}
	if _, err := m.Move(m.t.Context(), []schedule.Move{move}); err != nil {
		m.rt.Fatal(err)
	}
}

// anyList returns the list as it is, or as it was some time ago.
func (m *holdModel) anyList() *schedule.HoldList {
	if len(m.lists) > 0 && rapid.IntRange(0, 3).Draw(m.rt, "stale") == 0 {
		return rapid.SampledFrom(m.lists).Draw(m.rt, "list")
	}
	l := m.list()
	m.lists = append(m.lists, l)
	return l
}

func (m *holdModel) put(h schedule.Hold, l *schedule.HoldList) {
	copied := *l
	if err := copied.Put(m.t.Context(), h); err != nil && !errors.Is(err, schedule.ErrHoldsChanged) {
		m.rt.Fatal(err)
	}
}

func (m *holdModel) hold() {
	l := m.anyList()
	h := schedule.Hold{Namespace: m.namespace(), Since: l.Now}
	if rapid.IntRange(0, 3).Draw(m.rt, "for") == 0 {
		h.Until = l.Now + schedule.Millis(rapid.IntRange(1, 50).Draw(m.rt, "until"))
	}
	m.put(h, l)
}

func (m *holdModel) resume() {
	l := m.anyList()
	if len(l.Holds) == 0 {
		return
	}
	h := rapid.SampledFrom(l.Holds).Draw(m.rt, "hold")
	kind := rapid.SampledFrom([]schedule.ResumeKind{schedule.ResumeNow, schedule.ResumeRate, schedule.ResumeShift,
		schedule.ResumeDead}).Draw(m.rt, "kind")
	h.Resume = &schedule.Resume{Kind: kind, Rate: 500, At: l.Now}
	m.put(h, l)
}

// release runs a step of each resume in a list, perhaps an old one, from any place.
func (m *holdModel) release() {
	l := m.anyList()
	for _, h := range l.Holds {
		if h.Resume == nil {
			continue
		}
		var times schedule.Draw
		var err error
		if h.Resume.Kind == schedule.ResumeRate {
			if times, err = l.Draw(m.t.Context(), &h, 3, 50*time.Millisecond); err != nil {
				m.rt.Fatal(err)
			}
			if times.Left == 0 {
				continue
			}
		}
		done, err := l.Release(m.t.Context(), &h, keys.Single, m.places[h.Namespace.String()], &times)
		if err != nil {
			m.rt.Fatal(err)
		}
		if m.places[h.Namespace.String()] = done.Next; done.Last || done.Stale {
			delete(m.places, h.Namespace.String())
		}
	}
}

// claim claims, and then dies, gives back or settles.
func (m *holdModel) claim() {
	before := m.list()
	c := m.Claim(m.t.Context(), []schedule.ClaimRequest{{Partition: keys.Single}}, 20*time.Millisecond)[0]
	if c.Err != nil || len(c.Corrupt) > 0 {
		m.rt.Fatalf("claim: %v, %v", c.Err, c.Corrupt)
	}
	before.Now = schedule.MillisOf(c.At)
	for _, f := range c.Firings {
		payload := string(f.Payload)
		_, refused := m.said[payload]
		if before.Covers(f.Key, math.MaxInt64) && !f.MayBeStored && !refused {
			m.rt.Fatalf("%s %s was claimed under a hold: %+v", f.Ref, payload, before.Holds)
		}
		if !m.open[payload] {
			m.rt.Fatalf("%s %s was claimed, but it is over: %s", f.Ref, payload, m.ended[payload])
		}
		if f.Due > schedule.MillisOf(c.At) {
			m.rt.Fatalf("%s %s is early", f.Ref, payload)
		}
		m.judge(&f)
	}
	switch rapid.IntRange(0, 3).Draw(m.rt, "fate") {
	case 0: // it dies
	case 1:
		given := schedule.Outcomes(schedule.OutcomeGivenBack, c.Firings...)
		for i := range given {
			refused := c.Firings[i].Refusal != policy.Refusal{}
			given[i].MayBeStored = given[i].MayBeStored || !refused && rapid.Bool().Draw(m.rt, "stored")
			given[i].Pause = time.Duration(rapid.IntRange(0, 10).Draw(m.rt, "pause")) * time.Millisecond
		}
		if err := m.Release(m.t.Context(), given); err != nil {
			m.rt.Fatal(err)
		}
	default:
		m.settle(c.Firings)
	}
}

func (m *holdModel) settle(firings []schedule.Firing) {
	if err := m.Settle(m.t.Context(), schedule.Outcomes(schedule.OutcomeFired, firings...)); err != nil {
		m.rt.Fatal(err)
	}
	for _, f := range firings {
		delete(m.open, string(f.Payload))
		m.ended[string(f.Payload)] = "fired"
	}
}

// end resumes all holds and lets every timer fire.
func (m *holdModel) end() {
	for {
		l := m.list()
		if len(l.Holds) == 0 {
			break
		}
		h := l.Holds[0]
		h.Resume = &schedule.Resume{Kind: schedule.ResumeNow, At: l.Now}
		if err := l.Put(m.t.Context(), h); err != nil {
			m.rt.Fatal(err)
		}
		m.index.release(l, &h, &schedule.Draw{})
		if err := l.Remove(m.t.Context(), h.Namespace); err != nil {
			m.rt.Fatal(err)
		}
	}
	m.index.release(m.list(), &schedule.Hold{Resume: &schedule.Resume{Kind: schedule.ResumeNow}}, &schedule.Draw{})
	m.do("DEL", "g1", "g2", "g2:t")
	for deadline := time.Now().Add(time.Minute); len(m.open) > 0; {
		if time.Now().After(deadline) {
			m.rt.Fatalf("%v are left, by %q", m.open, m.state())
		}
		m.settle(m.claimFor(lease).Firings)
	}
	if left := m.index.left(); len(left) > 0 {
		m.rt.Fatalf("%q are left: %q", left, m.state())
	}
}

// Whatever is held, resumed, interrupted, repeated, moved, guarded and cancelled in whatever order: nothing is claimed
// under a hold unless it may have been published, each timer fires, is stopped by its guard or cancelled, and none ends
// twice.
func TestRandomHolds(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.GuardBy(rules(t, "pay=unless g2:%type"))
	rapid.Check(t, func(rt *rapid.T) {
		x.do("FLUSHDB")
		m := &holdModel{
			index: x, rt: rt, open: map[string]bool{}, of: map[string]string{}, ended: map[string]string{},
			places: map[string]schedule.HeldAt{}, guards: map[string]policy.Guards{}, said: map[string]policy.Refusal{},
		}
		m.list()
		steps := map[string]func(){
			"set": m.set, "cancel": m.cancel, "move": m.move, "hold": m.hold, "resume": m.resume, "release": m.release,
			"claim": m.claim, "guard": m.guard,
			"wait": func() { x.awaitClock(x.redisNow() + 10) },
		}
		for range rapid.IntRange(10, 60).Draw(rt, "steps") {
			steps[rapid.SampledFrom([]string{
				"set", "set", "set", "cancel", "move", "move", "hold", "resume", "release", "release", "claim", "claim",
				"claim", "wait", "guard", "guard",
			}).Draw(rt, "step")]()
		}
		m.end()
	})
}
