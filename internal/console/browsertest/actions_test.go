package browsertest

import (
	"fmt"
	"regexp"
	"strconv"
	"testing"
	"time"
)

// users returns how those look at the pages who act there.
func users() []look { return []look{{width: wide}, {width: phone}, {width: wide, scriptless: true}} }

// eachUser runs a test for each of them, who all have one system and an app of their own.
func eachUser(t *testing.T, test func(s *system, b *tab, app string), settings ...string) {
	t.Helper()
	s := newSystem(t, settings...)
	for _, l := range users() {
		t.Run(l.String(), func(t *testing.T) {
			mine := *s
			mine.t = t
			test(&mine, openTab(t, s.url, l), l.String())
		})
	}
}

// confirm checks the page that asks whether to go on, and does: it names the action and the number.
func (b *tab) confirm(action, number string) {
	b.t.Helper()
	b.sees("h1", action)
	b.sees("main", number)
	b.follow("main button.primary, main button.danger", "*")
}

// done waits for the page with the result. While the action runs, its page shows that already, and is then loaded
// again: the next step must not come in the middle of that.
func (b *tab) done(what string) {
	b.t.Helper()
	b.sees("main a.button", "Go back")
	b.sees("[role=status], [role=alert]", what)
}

func TestCancel(t *testing.T) {
	t.Parallel()
	eachUser(t, func(s *system, b *tab, app string) {
		one := s.setMany(app+":one:t", 2, time.Hour)
		b.open("/timers?q=" + app)
		b.follow(link, one[0])
		b.sees("h1", one[0])
		b.follow(button, "Cancel…")
		b.confirm("Cancel", "1 timer")
		b.done("Done. 1 ")
		s.gone(one[0])
		if _, found := s.get(one[1]); !found {
			t.Errorf("%s is gone too", one[1])
		}

		some := s.setMany(app+":some:t", 5, time.Hour)
		b.open("/timers?q=" + app + ":some")
		b.pick(3)
		b.follow(button, "Cancel…")
		b.confirm("Cancel", "3 timers")
		b.done("Done. 3 ")
		s.count(some, 2)

		many := s.setMany(app+":many:t", 1500, time.Hour)
		b.open("/timers?q=" + app + ":many")
		b.all()
		b.follow(button, "Cancel…")
		b.confirm("Cancel", "1,500 timers")
		b.done("Done. 1,500 ")
		s.count(many, 0)
		s.count(some, 2)
	})
}

// all selects all that match, not only those of the page.
func (b *tab) all() {
	b.t.Helper()
	b.click("main label", "all*that match")
}

// count checks how many of some timers are pending.
func (s *system) count(all []string, want int) {
	s.t.Helper()
	s.until(func() error {
		n := 0
		for _, key := range all {
			if _, found := s.get(key); found {
				n++
			}
		}
		if n != want {
			return fmt.Errorf("%d of %d timers are there, want %d", n, len(all), want)
		}
		return nil
	}, "the timers that are left")
}

func TestFireNow(t *testing.T) {
	t.Parallel()
	eachUser(t, func(s *system, b *tab, app string) {
		one := s.setMany(app+":one:t", 1, time.Hour)
		b.open("/timers?q=" + app)
		b.follow(link, one[0])
		b.follow(button, "Fire now…")
		b.confirm("Fire", "1 timer")
		b.done("Done. 1 ")
		s.collect(app+":one:t", 1)
		s.gone(one[0])

		s.setMany(app+":some:t", 4, time.Hour)
		b.open("/timers?q=" + app + ":some")
		b.pick(2)
		b.follow(button, "Fire now…")
		b.confirm("Fire", "2 timers")
		b.done("Done. 2 ")
		s.collect(app+":some:t", 2)

		s.setMany(app+":many:t", 300, time.Hour)
		b.open("/timers?q=" + app + ":many")
		b.all()
		b.follow(button, "Fire now…")
		b.confirm("Fire", "300 timers")
		b.done("Done. 300 ")
		s.collect(app+":many:t", 300)
	})
}

func TestSetToAnotherTime(t *testing.T) {
	t.Parallel()
	eachUser(t, func(s *system, b *tab, app string) {
		one := s.setMany(app+":one:t", 1, time.Hour)
		b.open("/timers?q=" + app)
		b.follow(link, one[0])
		b.follow(button, "Set to another time…")
		to := time.Now().Add(26 * time.Hour).Truncate(time.Second).UTC()
		b.set("main input[name=to]", "", to.Format(time.RFC3339))
		b.confirm("Set", "1 timer")
		b.done("Done. 1 ")
		s.due(one, to)

		many := s.setMany(app+":many:t", 120, time.Hour)
		b.open("/timers?q=" + app + ":many")
		b.all()
		b.follow(button, "Set to another time…")
		b.set("main input[name=to]", "", to.Format(time.RFC3339))
		b.confirm("Set", "120 timers")
		b.done("Done. 120 ")
		s.due(many, to)
	})
}

// due checks when timers are due.
func (s *system) due(all []string, want time.Time) {
	s.t.Helper()
	for _, key := range all {
		s.until(func() error {
			if timer, found := s.get(key); !found || !timer.Due.Equal(want) {
				return fmt.Errorf("%s is due at %v, want %v", key, timer.Due, want)
			}
			return nil
		}, "the other time")
	}
}

func TestReplayAndPurge(t *testing.T) {
	t.Parallel()
	eachUser(t, func(s *system, b *tab, app string) {
		for i := range 4 {
			s.bury(fmt.Sprintf("%s:m:t:%d", app, i), `{"order":1}`, "503 Service Unavailable")
		}
		before := s.dead()
		b.open("/dead?q=" + app)
		b.follow("tbody td.num a", "*")
		b.sees("main", "503 Service Unavailable")
		b.follow(button, "Replay…")
		b.confirm("Replay", "1 dead letter")
		b.done("Done. 1 ")
		s.collect(app+":m:t", 1)
		s.deadAre(before - 1)

		b.open("/dead?q=" + app)
		b.pick(1)
		b.follow(button, "Purge…")
		b.confirm("Purge", "1 dead letter")
		b.done("Done. 1 ")
		s.deadAre(before - 2)

		b.open("/dead?q=" + app)
		b.all()
		b.follow(button, "Purge…")
		b.confirm("Purge", "2 dead letters")
		b.done("Done. 2 ")
		s.deadAre(before - 4)
	})
}

// deadAre waits until there are so many dead letters.
func (s *system) deadAre(want uint64) {
	s.t.Helper()
	s.until(func() error {
		if n := s.dead(); n != want {
			return fmt.Errorf("%d, want %d", n, want)
		}
		return nil
	}, "dead letters")
}

// sum returns the sum of all numbers of a result.
func (b *tab) sum() (sum int) {
	b.t.Helper()
	for _, number := range regexp.MustCompile(`\d+`).FindAllString(b.text("[role=status]"), -1) {
		n, err := strconv.Atoi(number)
		if err != nil {
			b.t.Fatal(err)
		}
		sum += n
	}
	return sum
}

func TestHoldAndResume(t *testing.T) {
	t.Parallel()
	eachUser(t, func(s *system, b *tab, app string) {
		s.setMany(app+":m:t", 3, time.Hour)
		b.open("/holds")
		b.set("input[name=namespace]:not([type=hidden])", "", app+":m")
		b.set("input[name=reason]", "", "provider down")
		b.follow(button, "Hold…")
		b.confirm("Hold", "3 timers")
		b.done("1 held")
		holds, err := s.operator.Holds(t.Context())
		if err != nil || len(holds) != 1 || holds[0].Namespace != app+":m" || holds[0].Reason != "provider down" {
			t.Fatalf("holds: %+v, %v", holds, err)
		}
		s.setMany(app+":m:now", 4, 100*time.Millisecond)
		s.until(func() error {
			b.open("/holds")
			holds, err := s.operator.Holds(t.Context())
			if err == nil && (len(holds) != 1 || holds[0].Held != 4) {
				err = fmt.Errorf("%+v, want one with 4 timers", holds)
			}
			return err
		}, "the held timers")
		b.sees("tbody", app+":m")
		b.sees("tbody", "provider down")
		b.follow(button, "Resume…")
		b.confirm("Resume", app+":m")
		b.done("released")
		if n := b.sum(); n != 4 {
			t.Errorf("%d were released, by whomever: %s", n, b.text("[role=status]"))
		}
		s.collect(app+":m:now", 4)
		s.until(func() error {
			holds, err := s.operator.Holds(t.Context())
			if err == nil && len(holds) > 0 {
				err = fmt.Errorf("%+v", holds)
			}
			return err
		}, "the end of the hold")
	})
}
