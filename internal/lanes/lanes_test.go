package lanes

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

const window = 32

// fill enters a lane until it may not, and returns how many tries it takes.
func fill(w *Window, name string) (tries []*Lane) {
	for range 2 * window {
		l, answer := w.Enter(name, Load{Tries: window}, 0)
		if answer != In {
			break
		}
		tries = append(tries, l)
	}
	return tries
}

// trusted makes a lane trusted.
func trusted(t *testing.T, w *Window, name string) {
	t.Helper()
	l, answer := w.Enter(name, Load{Tries: window}, 0)
	if answer != In {
		t.Fatalf("%s: %v", name, answer)
	}
	w.Leave(l, 0, Works)
}

func TestLanesShareTheWindow(t *testing.T) {
	t.Parallel()
	w := New(Shares{Unknown: 2, Each: 1})
	trusted(t, w, "trusted")
	fresh := fill(w, "new")
	if len(fresh) != window/2 {
		t.Errorf("%d tries in a new lane, want %d", len(fresh), window/2)
	}
	if _, answer := w.Enter("another", Load{Tries: window}, 0); answer != Crowded {
		t.Error("new lanes fill more than their share together")
	}
	old := fill(w, "trusted")
	if len(old) != window/2 {
		t.Errorf("%d tries in a trusted lane, want the rest: %d", len(old), window/2)
	}
	for _, l := range old {
		w.Leave(l, 0, Nothing)
	}
	for i, l := range fresh {
		if news := w.Leave(l, 0, Fails); news != (i == 0) {
			t.Errorf("failure %d is news: %v", i+1, news)
		}
	}
	if got := len(fill(w, "new")); got != 1 {
		t.Errorf("%d tries in a lane that fails, want 1", got)
	}
	if old = fill(w, "trusted"); len(old) != window-1 {
		t.Errorf("%d tries in a trusted lane, want the rest: %d", len(old), window-1)
	}
}

// Lanes that fail are tried in a quarter of the window together.
func TestFailingLanesShareAQuarter(t *testing.T) {
	t.Parallel()
	w := New(Shares{Unknown: 2, Each: 1})
	in := 0
	for i := range window {
		name := fmt.Sprint(i)
		l, answer := w.Enter(name, Load{Tries: window}, 0)
		if answer != In {
			t.Fatalf("%s: %v", name, answer)
		}
		w.Leave(l, 0, Fails)
	}
	for i := range window {
		if _, answer := w.Enter(fmt.Sprint(i), Load{Tries: window}, 0); answer == In {
			in++
		} else if answer != Failing {
			t.Errorf("answer %v", answer)
		}
	}
	if in != window/4 {
		t.Errorf("%d failing lanes are tried at once, want %d", in, window/4)
	}
}

// While no lane is trusted, unknown lanes may fill a window with Alone.
func TestNewLanesAlone(t *testing.T) {
	t.Parallel()
	w := New(Shares{Unknown: 2, Each: 1, Alone: true})
	fresh := fill(w, "new")
	if len(fresh) != window {
		t.Errorf("%d tries, want %d", len(fresh), window)
	}
	for _, l := range fresh {
		w.Leave(l, 0, Nothing)
	}
	trusted(t, w, "trusted")
	if got := len(fill(w, "new")); got != window/2 {
		t.Errorf("beside a trusted lane %d tries, want %d", got, window/2)
	}
}

func TestBytesFillAWindow(t *testing.T) {
	t.Parallel()
	w, size := New(Shares{Unknown: 2, Each: 1}), Load{Tries: window, Bytes: 100}
	trusted(t, w, "trusted")
	if _, answer := w.Enter("new", size, 1000); answer != In {
		t.Error("one try does not fit, since it is large")
	}
	if _, answer := w.Enter("new", size, 1); answer != Crowded {
		t.Error("a lane without trust fills more than half of the bytes")
	}
	if _, answer := w.Enter("trusted", size, 1); answer != Crowded {
		t.Error("a full window takes more")
	}
}

func TestLanesThatWorkAgain(t *testing.T) {
	t.Parallel()
	w := New(Shares{Unknown: 2, Each: 1})
	l, _ := w.Enter("x", Load{Tries: window}, 0)
	w.Leave(l, 0, Fails)
	probe := fill(w, "x")
	if s := w.State("x"); len(probe) != 1 || s != (State{Tries: 1, Failing: true, Alone: true}) {
		t.Fatalf("a lane that fails takes %d tries", len(probe))
	}
	w.Leave(probe[0], 0, Works)
	all := fill(w, "x")
	if len(all) != window || w.untrusted != (Load{}) || w.State("x").Failing {
		t.Fatalf("%d tries in a lane that works again, %+v without trust", len(all), w.untrusted)
	}
	w.Leave(all[0], 0, Fails) // the others are without trust now
	for _, l := range all[1:] {
		w.Leave(l, 0, Nothing)
	}
	if w.untrusted != (Load{}) || !w.State("x").Failing {
		t.Errorf("%+v without trust, want none", w.untrusted)
	}
	w.Restore("x")
	if got := len(fill(w, "x")); got != window/2 {
		t.Errorf("%d tries in a lane that is unknown again, want %d", got, window/2)
	}
}

// A try that goes on blames its lane only if no other in it has worked since it began.
func TestLaneIsBlamedForItself(t *testing.T) {
	t.Parallel()
	w := New(Shares{Unknown: 2, Each: 1})
	before := time.Now()
	l, _ := w.Enter("x", Load{Tries: window}, 0)
	trusted(t, w, "x")
	if w.Fail(l, before) || w.State("x").Failing {
		t.Error("it is blamed though another try has worked since")
	}
	if !w.Fail(l, time.Now()) || w.Fail(l, time.Now()) || !w.State("x").Failing {
		t.Error("it is not blamed, or is news twice")
	}
	trusted2, _ := w.Enter("y", Load{Tries: window}, 0)
	w.Leave(trusted2, 0, Works)
	if !w.Fail(trusted2, time.Time{}) {
		t.Error("it is not blamed whatever others have done")
	}
}

func TestLanesAreForgotten(t *testing.T) {
	t.Parallel()
	w := New(Shares{Unknown: 2, Each: 1, Alone: true})
	kept, _ := w.Enter("kept", Load{Tries: window}, 0)
	for i := range 3 * maxLanes {
		l, _ := w.Enter(fmt.Sprint(i), Load{Tries: window}, 0)
		w.Leave(l, 0, Says(i%3))
	}
	if n := len(w.known); n > maxLanes || w.known["kept"] != kept || w.trusted > n {
		t.Errorf("%d lanes are remembered, %d of them trusted; the one with a try is %t", n, w.trusted,
			w.known["kept"] == kept)
	}
}

// The promises of a window under random tries: it is never overfilled; it refuses a try only for the reasons it gives;
// and its counts are true.
func TestWindowIsFair(t *testing.T) {
	t.Parallel()
	type try struct {
		lane  *Lane
		name  string
		bytes int
	}
	rapid.Check(t, func(t *rapid.T) {
		shares := Shares{
			Unknown: rapid.IntRange(1, 4).Draw(t, "unknown"), Each: rapid.IntRange(1, 2).Draw(t, "each"),
			Alone: rapid.Bool().Draw(t, "alone"),
		}
		size := Load{Tries: rapid.IntRange(1, 40).Draw(t, "tries"),
			Bytes: rapid.SampledFrom([]int{0, 100}).Draw(t, "bytes")}
		most := 0
		if size.Bytes > 0 {
			most = 20
		}
		w := New(shares)
		var in []try
		trusted, failing := map[string]bool{}, map[string]bool{}
		load := func(counts func(try) bool) (l Load) {
			for _, one := range in {
				if counts(one) {
					l.add(Load{1, one.bytes})
				}
			}
			return l
		}
		unknown := func(one try) bool { return !trusted[one.name] }
		t.Repeat(map[string]func(*rapid.T){
			"enter": func(t *rapid.T) {
				name, bytes := rapid.SampledFrom([]string{"a", "b", "c", "d", "e"}).Draw(t, "lane"),
					rapid.IntRange(0, most).Draw(t, "size")
				own := load(func(one try) bool { return one.name == name })
				alone := shares.Alone && len(trusted) == 0
				full := !load(func(try) bool { return true }).Fits(size, 1)
				shared := !alone && !load(unknown).Fits(size, shares.Unknown)
				quarter := !alone && !load(unknown).Fits(size, max(4, shares.Unknown))
				want := In
				switch {
				case full, trusted[name] && !own.Fits(size, shares.Each), !trusted[name] && !failing[name] && shared:
					want = Crowded
				case failing[name] && (own.Tries > 0 || quarter):
					want = Failing
				}
				l, answer := w.Enter(name, size, bytes)
				if answer != want {
					t.Fatalf("%s answers %v, want %v", name, answer, want)
				}
				if answer == In {
					in = append(in, try{l, name, bytes})
				}
			},
			"end": func(t *rapid.T) {
				if len(in) == 0 {
					t.Skip("nothing is in")
				}
				i := rapid.IntRange(0, len(in)-1).Draw(t, "try")
				one, says := in[i], Says(rapid.IntRange(0, 2).Draw(t, "says"))
				stays := says == Fails && rapid.Bool().Draw(t, "stays")
				var news bool
				if stays {
					news = w.Fail(one.lane, time.Time{})
				} else {
					in = append(in[:i], in[i+1:]...)
					news = w.Leave(one.lane, one.bytes, says)
				}
				if news != (says == Fails && !failing[one.name]) {
					t.Fatalf("a lane that fails is news: %t", news)
				}
				switch says {
				case Works:
					trusted[one.name] = true
					delete(failing, one.name)
				case Fails:
					failing[one.name] = true
					delete(trusted, one.name)
				case Nothing:
				}
			},
			"": func(t *rapid.T) {
				all := load(func(try) bool { return true })
				if w.Load() != all || w.untrusted != load(unknown) || w.trusted != len(trusted) ||
					all.Tries > size.Tries {
					t.Fatalf("%+v in it, %+v without trust, %d lanes trusted; want %+v, %+v, %d", w.Load(), w.untrusted,
						w.trusted, all, load(unknown), len(trusted))
				}
				for name := range failing {
					if s := w.State(name); s != (State{load(func(one try) bool { return one.name == name }).Tries, true,
						len(trusted) == 0}) {
						t.Fatalf("%s: %+v", name, s)
					}
				}
			},
		})
	})
}

// Tries for a lane with a full share, in which no try ends, are answered like for a failing one.
func TestStalledLane(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const stall = 100 * time.Millisecond
		w := New(Shares{Unknown: 2, Each: 2, Stall: stall})
		trusted(t, w, "slow")
		time.Sleep(time.Hour)
		all := fill(w, "slow")
		full := func(want Answer) {
			t.Helper()
			if _, answer := w.Enter("slow", Load{Tries: window}, 0); answer != want {
				t.Errorf("answer %v, want %v", answer, want)
			}
		}
		time.Sleep(stall)
		full(Crowded)
		time.Sleep(time.Nanosecond)
		full(Failing)
		w.Leave(all[0], 0, Works)
		if _, answer := w.Enter("slow", Load{Tries: window}, 0); answer != In {
			t.Errorf("answer %v", answer)
		}
		full(Crowded)
	})
}
