package faults_test

import "github.com/timerd-io/timerd/test/system"

// repetition is the model's state of a repeating timer.
type repetition struct {
	every, nominal int64 // ms; when the pending occurrence is due by the grid
	left           int   // how many fire yet, with the pending one; 0: the timer does not repeat

	// lost: a plain command came when timerd may not have heard of it in time, or when an occurrence was under way.
	// What fires from then on nobody can tell, so no more commands are played.
	lost bool
}

// every and times make a repetition of a step's numbers.
func (st step) every() int64 { return 100 + st.ttl/4 }

func (st step) times() int { return 1 + int(st.ttl%4) }

// goOn notes that the pending occurrence has fired.
func (k *modelTimer) goOn() {
	k.left--
	k.nominal += k.every
	k.due, k.old = k.nominal, ""
}

// last returns when the timer is due for the last time.
func (k *modelTimer) last() int64 {
	if k.left == 0 {
		return k.due
	}
	return max(k.due, k.nominal+int64(k.left-1)*k.every)
}

// playRepeating applies the special effects of a command on a repeating timer. was is the time at which its key was to
// run out. It reports whether that was all.
func playRepeating(s *system.System, m *model, st step, now, was int64, goesOn bool) bool {
	s.T.Helper()
	k := m.timers[st.key]
	switch {
	case k == nil || k.left == 0:
		return false
	case !goesOn: // all have fired and are settled
		m.at(st.key, k.last()+1)
		return false
	case was > now:
		return playPending(s, m, st, now, was)
	}
	// An occurrence is due or firing, and there is no key. Due ones may have fired by now.
	switch st.what {
	case "timer_set", "timer_repeat", "timer_cancel":
		for k.due <= now && k.left > 0 {
			m.fires(st.key, k, false)
			k.goOn()
		}
		*k = modelTimer{}
		return false
	case "SET", "SET without TTL":
		m.isLost(st.key, k)
	default: // the others need a key
		if was == now {
			m.isLost(st.key, k)
		}
	}
	return true
}

// playPending is playRepeating for a timer without an occurrence on its way: all due ones have fired.
func playPending(s *system.System, m *model, st step, now, was int64) bool {
	s.T.Helper()
	k := m.at(st.key, now)
	switch {
	case was > k.due && was <= k.due+3:
		k.due = was // another one, moved, has fired at that very time
	case was != k.due:
		s.T.Fatalf("the next occurrence of %s is due at %d, want %d%s", st.key, was, k.due, m.tell(st.key))
	}
	blind := m.plain(now) || k.unheard
	switch st.what {
	case "timer_set", "timer_repeat", "timer_cancel":
		return false
	case "SET", "EXPIRE":
		blind = blind || st.ttl <= lag
	case "SET without TTL", "PERSIST":
	default:
		blind = blind || k.due-now <= lag
	}
	if blind {
		m.isLost(st.key, k)
	}
	return k.lost
}

// isLost notes that a timer's further firings are unknown.
func (m *model) isLost(key string, k *modelTimer) {
	m.history = append(m.history, key+" is lost")
	*k = modelTimer{repetition: repetition{lost: true}}
}
