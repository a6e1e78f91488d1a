package faults_test

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/test/system"
)

// lag is the time after a plain command by which timerd has certainly received its event, in ms. The meaning of a
// command is exact; timerd's knowledge of it in time is not.
const lag = 150

// firing is one that the model expects or allows.
type firing struct {
	key     string
	due     int64
	payload string
}

// modelTimer is a key as the model sees it.
type modelTimer struct {
	live    bool
	due     int64 // 0: no TTL
	payload string
	old     string       // another payload that may still count, because it changed within lag of due
	changed int64        // when a plain command last changed it
	unheard bool         // timerd may not have heard of this state
	stale   []modelTimer // earlier states: the last one known to a timerd killed right afterwards

	repetition // of one that repeats
}

// replacement is the replacement of a pending timer by a plain command at a time: by another timer, or by none.
type replacement struct {
	key   string
	timer modelTimer
	at    int64
}

// model has the required and the possible firings, by the words of the contract. It is fed with commands and the exact
// times at which Redis ran them.
type model struct {
	timers    map[string]*modelTimer
	must, may []firing
	replaced  []replacement // timerd may still receive their events; reset at each kill
	history   []string
	blindFrom int64 // since when timerd is down; 0: it is up
	blindTo   int64 // until when it was, the last time
}

// at brings a timer up to a time: one whose TTL has run out by then fires. One
// that is due in this very millisecond may have been claimed before the command.
func (m *model) at(key string, now int64) *modelTimer {
	k := m.timers[key]
	if k == nil {
		k = &modelTimer{}
		m.timers[key] = k
	}
	if k.live && k.due != 0 && k.due <= now {
		m.fires(key, k, k.due < now && !k.unheard)
		switch {
		case k.due == now:
		case k.left > 1:
			k.goOn()
			return m.at(key, now)
		default:
			*k = modelTimer{}
		}
	}
	return k
}

func (m *model) fires(key string, k *modelTimer, certain bool) {
	f := firing{key, k.due, k.payload}
	if certain && k.old == "" {
		m.must = append(m.must, f)
		return
	}
	m.may = append(m.may, f)
	if k.old != "" {
		m.may = append(m.may, firing{key, k.due, k.old})
	}
}

// ending is the end of a pending timer.
type ending int

const (
	library  ending = iota // a function of the library, in the schedule, too
	change                 // a plain command, after which the key lives
	deletion               // a plain command
)

// ends notes the end of a pending timer, by a command at a time. If timerd could not receive the event before the due
// time, the timer may still fire.
func (m *model) ends(key string, k *modelTimer, now int64, by ending) {
	if by != library && m.plain(now) {
		m.firesStale(key, k)
	}
	if !k.live || k.due == 0 {
		return
	}
	if m.blindFrom != 0 || k.unheard || by == deletion && k.due-now <= lag || now-m.blindTo <= lag {
		m.fires(key, k, false)
	} else if by != library {
		m.replaced = append(m.replaced, replacement{key, *k, now})
	}
}

// firesStale notes that timerd may know an earlier state of a key, and no later one.
func (m *model) firesStale(key string, k *modelTimer) {
	for _, old := range k.stale {
		m.fires(key, &old, false)
	}
	k.stale = nil
}

// replace notes that a plain command gave a pending timer a new due time. If it is too short for the event to arrive in
// time, the old one may fire.
func (m *model) replace(st step, k *modelTimer, now int64) {
	if k.live && k.due != 0 && st.ttl <= lag {
		m.fires(st.key, k, false)
		return
	}
	m.ends(st.key, k, now, change)
}

// plain reports whether the event of a plain command at a time may be missed.
func (m *model) plain(now int64) bool { return m.blindFrom != 0 || now-m.blindTo <= lag }

// claimed reports whether timerd has certainly claimed, by now, the timers due at a time.
func (m *model) claimed(due, now int64) bool {
	if m.blindFrom != 0 {
		now = m.blindFrom
	}
	return max(due, m.blindTo)+lag < now
}

// tell returns the known history of a key, for the message of a failure.
func (m *model) tell(key string) string {
	var b strings.Builder
	for _, line := range m.history {
		if strings.Contains(line, key+" ") || strings.Contains(line, "timerd") {
			fmt.Fprintf(&b, "\n\t%s", line)
		}
	}
	for name, list := range map[string][]firing{"must": m.must, "may": m.may} {
		for _, f := range list {
			if f.key == key {
				fmt.Fprintf(&b, "\n\t%s fire: %d %s", name, f.due, f.payload)
			}
		}
	}
	return b.String()
}

// unheardOf reports whether a firing fits a key whose last changes timerd missed: the due time is the arrival of the
// expired event, and the payload is the last one known, or missing.
func (m *model) unheardOf(f firing) bool {
	var due, payload, missing bool
	for _, g := range m.may {
		if g.key == f.key {
			missing = f.payload == "missing"
			due = due || f.due >= g.due && f.due <= g.due+1000
			payload = payload || f.payload == g.payload
		}
	}
	return missing || due && payload
}

// kill notes that timerd was killed at a time.
func (m *model) kill(now int64) {
	m.history = append(m.history, fmt.Sprintf("%d timerd killed", now))
	for _, k := range m.timers {
		if m.blindFrom == 0 { // it has heard all of the last time
			k.stale = nil
		}
	}
	m.blindFrom = now
	for _, k := range m.timers {
		k.unheard = k.unheard || now-k.changed <= lag
		k.lost = k.lost || k.unheard && k.left > 0
	}
	for _, r := range m.replaced { // missed by timerd
		k := m.timers[r.key]
		switch {
		case now-r.at > lag:
		case k.live:
			k.stale = append(k.stale, r.timer)
		default:
			m.fires(r.key, &r.timer, false)
			k.lost = k.lost || r.timer.left > 0
		}
	}
	m.replaced = nil
}

// ready notes that timerd is back since a time: it receives the events of timers with some time left.
func (m *model) ready(now int64) {
	m.history = append(m.history, fmt.Sprintf("%d timerd ready", now))
	m.blindFrom, m.blindTo = 0, now
	for key, k := range m.timers {
		// Keys that ran out meanwhile, as far as timerd knows, fire unless the key shows that it was changed in time.
		k.stale = slices.DeleteFunc(k.stale, func(old modelTimer) bool {
			if old.due <= now+lag {
				m.fires(key, &old, false)
			}
			return old.due <= now+lag
		})
		k.unheard = k.unheard && k.due-now <= lag
	}
}

// step is one command of a random sequence.
type step struct {
	wait time.Duration
	key  string
	what string
	ttl  int64 // ms

	restart bool // timerd, before the command
}

// play runs one step against Redis and the model.
func play(s *system.System, m *model, st step, payload string) {
	s.T.Helper()
	if k := m.timers[st.key]; k != nil && k.lost {
		return
	}
	var commands [][]any
	switch st.what {
	case "SET":
		commands = [][]any{{"SET", st.key, payload, "PX", st.ttl}}
	case "SET without TTL":
		commands = [][]any{{"SET", st.key, payload}}
	case "SET KEEPTTL":
		commands = [][]any{{"SET", st.key, payload, "XX", "KEEPTTL"}}
	case "EXPIRE":
		commands = [][]any{{"PEXPIRE", st.key, st.ttl}}
	case "timer_set":
		commands = [][]any{{"FCALL", "timer_set", 1, st.key, payload, "PX", st.ttl}}
	case "timer_repeat":
		commands = [][]any{{"FCALL", "timer_repeat", 1, st.key, payload, "EVERY", st.every(), "TIMES", st.times(),
			"CATCHUP", system.Hour}}
	case "timer_cancel":
		commands = [][]any{{"FCALL", "timer_cancel", 1, st.key}}
	case "RENAME":
		commands = [][]any{{"RENAME", st.key, "nobody"}, {"DEL", "nobody"}}
	default: // DEL, UNLINK, GETDEL, PERSIST
		commands = [][]any{{st.what, st.key}}
	}
	var clock *redis.TimeCmd
	var replies []*redis.Cmd
	var was, expires *redis.DurationCmd
	var value *redis.StringCmd
	var serial *redis.FloatCmd
	_, _ = s.RDB.TxPipelined(s.T.Context(), func(tx redis.Pipeliner) error {
		clock, was, serial = tx.Time(s.T.Context()), tx.PExpireTime(s.T.Context(), st.key),
			tx.ZScore(s.T.Context(), keys.Single.Repeat(), st.key)
		for _, c := range commands {
			replies = append(replies, tx.Do(s.T.Context(), c...))
		}
		expires, value = tx.PExpireTime(s.T.Context(), st.key), tx.Get(s.T.Context(), st.key)
		return nil
	})
	if clock.Err() != nil {
		s.T.Fatal(clock.Err())
	}
	now, due := clock.Val().UnixMilli(), expires.Val().Milliseconds()
	reply, err := replies[0].Result()
	m.history = append(m.history, fmt.Sprintf("%d %s %s %d ms, %q: %v, due %d", now, st.key, st.what, st.ttl, payload,
		reply, due))
	if playRepeating(s, m, st, now, was.Val().Milliseconds(), serial.Err() == nil) {
		return
	}
	k := m.at(st.key, now)
	switch st.what {
	case "SET":
		m.replace(st, k, now)
		*k = modelTimer{live: true, due: due, payload: payload, changed: now, unheard: m.plain(now) || st.ttl <= lag,
			repetition: k.repetition}
	case "SET without TTL":
		m.ends(st.key, k, now, change)
		*k = modelTimer{live: true}
	case "SET KEEPTTL":
		if err == nil && k.live {
			if k.due != 0 && (k.due-now <= lag || m.plain(now)) {
				k.old = k.payload
			}
			k.payload, k.changed = payload, now
		}
	case "EXPIRE":
		if reply == int64(1) && k.live {
			m.replace(st, k, now)
			k.unheard = m.plain(now) || st.ttl <= lag
			k.due, k.changed = due, now
			if k.payload == "" {
				k.payload = value.Val()
			}
		}
	case "timer_set":
		if err != nil {
			s.T.Fatalf("timer_set: %v", err)
		}
		m.ends(st.key, k, now, library)
		*k = modelTimer{live: true, due: reply.(int64), payload: payload}
	case "timer_repeat":
		if err != nil {
			s.T.Fatalf("timer_repeat: %v", err)
		}
		m.ends(st.key, k, now, library)
		first := reply.(int64)
		*k = modelTimer{live: true, due: first, payload: payload,
			repetition: repetition{every: st.every(), left: st.times(), nominal: first}}
	case "timer_cancel":
		if reply == "cancelled" {
			// It may have been due already: then this was in time.
			m.must = slices.DeleteFunc(m.must, func(f firing) bool {
				if f.key != st.key || m.claimed(f.due, now) {
					return false
				}
				m.may = append(m.may, f)
				return true
			})
		}
		if k.live && k.due != 0 {
			*k = modelTimer{}
		}
	case "PERSIST":
		if k.live {
			m.ends(st.key, k, now, change)
			k.due, k.old, k.repetition = 0, "", repetition{}
		}
	default:
		m.ends(st.key, k, now, deletion)
		*k = modelTimer{}
	}
}

// TestRandomCommands compares random sequences of commands, waits and restarts
// with the model.
func TestRandomCommands(t *testing.T) {
	t.Parallel()
	for name, value := range map[string]string{"rapid.nofailfile": "true", "rapid.checks": "5", "rapid.steps": "40",
		"rapid.shrinktime": "20s"} {
		if err := flag.Set(name, value); err != nil {
			t.Fatal(err)
		}
	}
	s := system.New(t)
	p := s.Start()
	round := 0
	rapid.Check(t, func(rt *rapid.T) {
		round++
		app := fmt.Sprintf("round%d", round)
		c := testenv.Collect(t, s.JS, "TIMERS", "timers.fired."+app+".>")
		m := &model{timers: map[string]*modelTimer{}}
		steps := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) step {
			return step{
				wait: time.Duration(rapid.IntRange(0, 40).Draw(rt, "wait")) * time.Millisecond,
				key:  fmt.Sprintf("%s:m:t:%d", app, rapid.IntRange(0, 39).Draw(rt, "key")),
				what: rapid.SampledFrom([]string{
					"SET", "SET", "SET", "timer_set", "timer_set", "timer_repeat", "timer_repeat", "EXPIRE", "EXPIRE",
					"SET KEEPTTL", "SET without TTL",
					"PERSIST", "DEL", "UNLINK", "GETDEL", "RENAME", "timer_cancel",
				}).Draw(rt, "what"),
				restart: rapid.IntRange(0, 59).Draw(rt, "restart") == 0,
				ttl:     int64(rapid.IntRange(1, 1200).Draw(rt, "ttl")),
			}
		}), 100, 150).Draw(rt, "steps")
		for i, st := range steps {
			<-time.After(st.wait)
			if st.restart {
				m.kill(s.Now())
				p.Kill()
				p = s.Launch()
			}
			if m.blindFrom != 0 && i%4 == 0 {
				p.AwaitReady(true)
				m.ready(s.Now())
			}
			play(s, m, st, fmt.Sprintf("payload %d", i))
		}
		p.AwaitReady(true)
		end := s.Now()
		for key, k := range m.timers {
			end = max(end, k.last())
			m.at(key, 1<<62)
		}
		s.After(end)
		judge(rt, c, m)
	})
}

// judge compares the firings with the model.
func judge(rt *rapid.T, c *testenv.Collector, m *model) {
	seen := map[firing]int{}
	decode := func() error {
		clear(seen)
		for _, msg := range c.All() {
			e, err := event.Parse(msg.Data)
			if err != nil {
				return err
			}
			if e.Time.Before(e.Due) {
				rt.Fatalf("%s was early", e.ID)
			}
			f := firing{e.Key.String(), e.Due.UnixMilli(), string(e.Data)}
			if e.Status != "" {
				f = firing{key: f.key, payload: e.Status}
			}
			seen[f]++
		}
		for _, f := range m.must {
			if seen[f] == 0 {
				return fmt.Errorf("%v has not fired%s", f, m.tell(f.key))
			}
		}
		return nil
	}
	deadline := time.Now().Add(15 * time.Second)
	for err := decode(); err != nil; err = decode() {
		if time.Now().After(deadline) {
			rt.Fatal(err)
		}
		<-time.After(20 * time.Millisecond)
	}
	rt.Logf("of %d that fired %d had to; %d more were allowed to", len(seen), len(m.must), len(m.may))
	for f, n := range seen {
		allowed := n == 1 && (m.timers[f.key].lost || slices.Contains(m.must, f) || slices.Contains(m.may, f))
		if !allowed && (n == 1 || f.payload == "missing") {
			allowed = m.unheardOf(f)
		}
		if !allowed {
			rt.Fatalf("%v fired %d times%s", f, n, m.tell(f.key))
		}
	}
}
