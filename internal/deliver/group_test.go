package deliver_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/deliver"
	"github.com/timerd-io/timerd/internal/testenv"
)

// entries returns a file with an entry for each match, in this order, of receivers that tell them apart by the path.
func entries(url string, matches ...string) string {
	text := "endpoints:\n"
	for _, match := range matches {
		text += fmt.Sprintf("- {match: '%s', url: '%s/%s', %s}\n", match, url, strings.ReplaceAll(match, "*", "x"),
			local)
	}
	return text
}

// numbered publishes an event for each number, of a timer with that id and the name that a number has.
func (r *rig) numbered(from, to int, name func(i int) string) {
	r.t.Helper()
	for i := from; i < to; i++ {
		r.publish(fired(fmt.Sprintf("%s:%d", name(i), i), []byte("{}")))
	}
}

func always(name string) func(int) string { return func(int) string { return name } }

// healthy waits until a process takes events.
func healthy(t testing.TB, d *deliver.Deliverer) {
	t.Helper()
	testenv.Eventually(t, patience, d.Healthy, "a process that takes events")
}

// outdated waits until a process says that its group uses another file.
func outdated(t testing.TB, d *deliver.Deliverer) {
	t.Helper()
	testenv.Eventually(t, patience, func() error {
		if err := d.Healthy(); err == nil || !strings.Contains(err.Error(), "uses another file") {
			return errors.New("it says: " + fmt.Sprint(err))
		}
		return nil
	}, "a process that takes no events")
}

// once checks that receivers got each of n timers once, and no other.
func once(t testing.TB, n int, all ...*receiver) {
	t.Helper()
	calls := map[string]int{}
	for _, v := range all {
		for _, q := range v.requests() {
			calls[q.header.Get("Webhook-Id")]++
		}
	}
	again := 0
	for _, times := range calls {
		again += times - 1
	}
	if len(calls) != n || again > 0 {
		t.Errorf("%d of %d delivered, and %d again", len(calls), n, again)
	}
}

// overlapping are names of timers that the entries pay:order and pay:*:callback match, both or one of them.
func overlapping(i int) string {
	return []string{"pay:order:callback", "pay:order:notice", "pay:card:callback"}[i%3]
}

// Entries that overlap are swapped again and again under load: each event is delivered, and once.
func TestSwappedEntriesLoseNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	v := receive(t, nil)
	one, other := []string{"pay:order", "pay:*:callback"}, []string{"pay:*:callback", "pay:order"}
	d, _ := r.deliver(parse(t, entries(v.URL, one...)))
	healthy(t, d)
	const all = 400
	for i := range all {
		r.numbered(i, i+1, overlapping)
		if i%40 == 20 {
			one, other = other, one
			d.Reload(parse(t, entries(v.URL, one...)))
		}
	}
	r.records(all)
	r.settled("timerd-deliver")
	once(t, all, v)
	if paths := map[string]bool{}; len(v.requests()) > 0 {
		for _, q := range v.requests() {
			paths[q.path] = true
		}
		if len(paths) != 2 {
			t.Errorf("called %v, want both entries", paths)
		}
	}
}

// A rolling update: processes with the old file and with the new one run side by side, and the entries overlap. What
// fires is delivered once, by those with the new file as soon as there are such; the old one takes no more events, and
// says so.
func TestOldAndNewFileSideBySide(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	old, fresh := receive(t, nil), receive(t, nil)
	file := entries(old.URL, "pay:order", "pay:*:callback", "shop")
	first, stopFirst := r.deliver(parse(t, file))
	second, stopSecond := r.deliver(parse(t, file))
	healthy(t, first)
	healthy(t, second)
	const all = 400
	next := parse(t, entries(fresh.URL, "pay:*:callback", "pay:order", "bank"))
	var others []*deliver.Deliverer
	for i := range all {
		r.numbered(i, i+1, overlapping)
		switch i {
		case all / 4:
			d, _ := r.deliver(next)
			others = append(others, d)
		case all / 2:
			healthy(t, others[0])
			stopFirst()
			d, _ := r.deliver(next)
			others = append(others, d)
		}
	}
	outdated(t, second)
	r.numbered(all, all+10, always("bank:order:callback"))
	r.numbered(all+10, all+20, always("shop:order:callback")) // which the new file does not match
	r.records(all + 10)
	stopSecond()
	for _, d := range others {
		healthy(t, d)
	}
	r.settled("timerd-deliver")
	once(t, all+10, old, fresh)
	if len(old.requests()) == 0 || len(fresh.requests()) < 10 {
		t.Errorf("%d calls by the old file, %d by the new one", len(old.requests()), len(fresh.requests()))
	}
}

// An entry that is made wider, narrower and wider again brings back no event: neither a delivered one, nor one that
// fired while it did not match, even after a restart of NATS that forgot the consumer's progress.
func TestWiderEntriesBringNothingBack(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	v := receive(t, nil)
	d, stop := r.deliver(parse(t, entries(v.URL, "pay:order:callback")))
	healthy(t, d)
	r.numbered(0, 50, always("pay:order:callback"))
	r.numbered(50, 100, always("pay:order:notice")) // nobody's
	r.records(50)
	n := 50
	for round, matches := range [][]string{{"pay:order"}, {"pay:order:callback", "shop"}, {"pay"},
		{"pay:order:callback"}, {"pay:*:callback", "pay:order"}} {
		if round == 1 {
			r.nats.Restart()
		}
		if round == 2 {
			stop() // the file is changed while nothing runs, and events wait
			r.numbered(1000, 1010, always("pay:order:callback"))
			r.numbered(1010, 1020, always("pay:card:notice")) // nobody's yet
			n += 10
			d, _ = r.deliver(parse(t, entries(v.URL, matches...)))
		} else {
			d.Reload(parse(t, entries(v.URL, matches...)))
		}
		settled := func() error {
			if err := d.Healthy(); err != nil {
				return err
			}
			if said := r.out.String(); strings.Count(said, "events are taken by this file") < round+2 {
				return errors.New("the file does not count yet")
			}
			return nil
		}
		testenv.Eventually(t, patience, settled, "the new file")
		r.numbered(100*round+100, 100*round+105, always("pay:order:callback"))
		n += 5
		r.records(n)
	}
	r.settled("timerd-deliver")
	once(t, n, v)
}

// A process that is started with an old file never takes over, whichever others run. Events that only the new file
// matches wait for a process that has it.
func TestRestartWithTheOldFile(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	v := receive(t, nil)
	old, fresh := parse(t, entries(v.URL, "pay")), parse(t, entries(v.URL, "pay", "shop"))
	_, stop := r.deliver(fresh)
	r.numbered(0, 5, always("shop:order:callback"))
	r.records(5)
	stop()
	d, stopOld := r.deliver(old)
	outdated(t, d)
	r.numbered(5, 10, always("shop:order:callback"))
	r.numbered(10, 15, always("pay:order:callback"))
	err := d.Healthy().Error()
	for _, want := range []string{"group deliver uses another file", fresh.File.String(), old.File.String(),
		"touch it and send SIGHUP"} {
		if !strings.Contains(err, want) {
			t.Errorf("it says %s, without %q", err, want)
		}
	}
	stopOld()
	d, _ = r.deliver(fresh)
	healthy(t, d)
	r.records(15)
	r.settled("timerd-deliver")
	once(t, 15, v)

	// The greater version counts, whatever the times are; and a file read again after a change is the newest.
	newer := parse(t, "version: 3\n"+entries(v.URL, "pay"))
	newer.File.Changed = old.File.Changed.Add(-time.Hour)
	byVersion, _ := r.deliver(newer)
	healthy(t, byVersion)
	outdated(t, d)
	older := parse(t, "version: 2\n"+entries(v.URL, "pay", "bank"))
	d.Reload(older)
	outdated(t, d)
	restored := parse(t, "version: 3\n"+entries(v.URL, "bank"))
	restored.File.Changed = time.Unix(1_000_000_000, 0) // as mv keeps it
	byVersion.Reload(restored)
	r.goesBy(byVersion, restored)
}

// A copy of a file that the group has left has a later time than the file that counts. It takes over neither in a
// container that starts, nor in a process that was behind and gets it by SIGHUP. In one that goes by the group's file
// it does: it was put there on purpose.
func TestCopyOfAnOldFile(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	v := receive(t, nil)
	copied := func(text string) *deliver.Config {
		config := parse(t, text)
		config.File.Changed = time.Now().Add(time.Second) // the server's time counts at most
		return config
	}
	files := []string{entries(v.URL, "pay"), entries(v.URL, "pay", "shop"), entries(v.URL, "pay", "shop", "bank")}
	first, stopFirst := r.deliver(copied(files[0]))
	behind, _ := r.deliver(copied(files[0]))
	healthy(t, first)
	healthy(t, behind)
	for _, file := range files[1:] {
		first.Reload(copied(file))
		r.goesBy(first, copied(file))
	}
	outdated(t, behind)
	r.numbered(0, 5, always("bank:order:callback"))
	r.records(5)
	stopFirst()
	r.numbered(5, 10, always("bank:order:callback"))

	for _, file := range files[:2] {
		started, stop := r.deliver(copied(file))
		outdated(t, started)
		if err, want := started.Healthy().Error(), "give it a version: over 0 and send SIGHUP"; !strings.Contains(err,
			want) {
			t.Errorf("it says %s, without %q", err, want)
		}
		stop()
	}
	behind.Reload(copied(files[1]))
	told := copied(files[1]).File.String()
	testenv.Eventually(t, patience, func() error {
		if err := behind.Healthy(); err == nil || !strings.Contains(err.Error(), told) {
			return errors.New("it says: " + fmt.Sprint(err))
		}
		return nil
	}, "a process that was behind, with a file that is still old")

	last, _ := r.deliver(copied(files[2]))
	healthy(t, last)
	r.records(10)
	last.Reload(copied(files[0]))
	behind.Reload(copied(files[0]))
	healthy(t, behind)
	healthy(t, last)
	r.numbered(10, 15, always("pay:order:callback"))
	r.records(15)
	r.settled("timerd-deliver")
	once(t, 15, v)
}

// A new group begins where the file says, and groups have nothing to do with each other.
func TestGroupsBeginWhereTheySay(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.numbered(0, 10, always("pay:order:callback"))
	between := time.Now()
	r.numbered(10, 20, always("pay:order:callback"))
	receivers := map[string]*receiver{}
	want := map[string]int{"all": 30, "now": 10, between.Format(time.RFC3339Nano): 20}
	for start := range want {
		receivers[start] = receive(t, nil)
		d, _ := r.deliver(parse(t, fmt.Sprintf("group: g%d\nstart: %s\n%s", len(receivers), start,
			entries(receivers[start].URL, "pay"))))
		healthy(t, d)
	}
	r.numbered(20, 30, always("pay:order:callback"))
	for start, n := range want {
		receivers[start].wait(t, n)
	}
	for n := 1; n <= len(want); n++ {
		r.settled(fmt.Sprintf("timerd-deliver~g%d", n))
	}
	for start, n := range want {
		once(t, n, receivers[start])
	}
}

// A file grows from one endpoint of one host to two, goes to another --calls, and shrinks again: the group goes on,
// also on a consumer that another version or an operator has made with another max_waiting, which JetStream refuses to
// change.
func TestFileThatGrowsAndShrinks(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	one, two := receive(t, nil), receive(t, nil)
	small := entries(one.URL, "pay")
	large := small + strings.TrimPrefix(entries(two.URL, "shop"), "endpoints:\n")
	for i, maxWaiting := range []int{0, 7, 100_000} {
		group := fmt.Sprintf("group: g%d\nstart: now\n", i)
		d, stop := r.deliver(parse(t, group+small))
		healthy(t, d)
		if maxWaiting > 0 { // an old one
			stop()
			r.remake("timerd-deliver~"+fmt.Sprintf("g%d", i),
				func(c *jetstream.ConsumerConfig) { c.MaxWaiting = maxWaiting })
			d, stop = r.deliver(parse(t, group+small))
			healthy(t, d)
		}
		name := func(j int) string { return []string{"pay", "shop"}[j%2] + ":order:callback" }
		sent := 6 * i
		call := func(j int, name string) {
			t.Helper()
			r.publish(fired(fmt.Sprintf("%s:%d", name, sent+j), []byte("{}")))
			r.records(sent + j + 1)
		}
		call(0, name(0))
		larger := parse(t, group+large)
		d.Reload(larger)
		call(1, name(0))
		r.goesBy(d, larger) // the group gets a new namespace's events from then on
		call(2, name(1))
		stop()
		d, stop = r.deliver(parse(t, group+large), func(d *deliver.Deliverer) { d.Calls = 4096 })
		healthy(t, d)
		call(3, name(1))
		d.Reload(parse(t, group+small+"# smaller\n"))
		call(4, name(0))
		stop()
		d, stop = r.deliver(parse(t, group+small+"# smaller\n"), func(d *deliver.Deliverer) { d.Calls = 1 })
		healthy(t, d)
		call(5, name(0))
		stop()
	}
	once(t, 18, one, two)
}

// goesBy waits until a process takes events by a configuration that no process has had before.
func (r *rig) goesBy(d *deliver.Deliverer, c *deliver.Config) {
	r.t.Helper()
	testenv.Eventually(r.t, patience, func() error {
		if !strings.Contains(r.out.String(), "file="+c.File.String()) {
			return errors.New("not yet")
		}
		return d.Healthy()
	}, "a process that goes by the file "+c.File.String())
}

// remake creates a group's consumer again, with other settings.
func (r *rig) remake(durable string, change func(*jetstream.ConsumerConfig)) {
	r.t.Helper()
	c, err := r.js.Consumer(r.t.Context(), "TIMERS", durable)
	if err == nil {
		err = r.js.DeleteConsumer(r.t.Context(), "TIMERS", durable)
	}
	if err != nil {
		r.t.Fatal(err)
	}
	config := c.CachedInfo().Config
	change(&config)
	if _, err := r.js.CreateConsumer(r.t.Context(), "TIMERS", config); err != nil {
		r.t.Fatal(err)
	}
}
