package status

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/ledger"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// A difference is a warning that names the partitions and begins with the causes.
func TestAccountThatDiffers(t *testing.T) {
	t.Parallel()
	differ := func(all ...int64) *schedule.Account {
		a := &schedule.Account{}
		for _, n := range all {
			a.Differences = append(a.Differences, schedule.AccountDifference{Partition: keys.Single, Difference: n})
			a.Difference += n
		}
		return a
	}
	for _, c := range []struct {
		account *schedule.Account
		want    string
	}{
		{nil, ""},
		{differ(), ""},
		{differ(1), "the account differs: 1 timer is missing in timerd:{t}:"},
		{differ(-2, 2), "the account differs: 2 timers are there too many in timerd:{t}:, 2 timers are missing in " +
			"timerd:{t}:"},
		{differ(1, 1, 1, 1, 1), "the account differs: 1 timer is missing in timerd:{t}:, 1 timer is missing in " +
			"timerd:{t}:, 1 timer is missing in timerd:{t}:, 2 more partitions"},
	} {
		var found diag.Findings
		checkAccount(&facts{account: c.account}, &found)
		switch {
		case c.want == "" && len(found) == 0:
		case len(found) != 1 || found[0].Level != diag.Warn || found[0].Text != c.want ||
			!strings.Contains(found[0].Fix, "run: timerd audit"):
			t.Errorf("%+v, want %q", found, c.want)
		}
	}
}

// A comparison that no timerd has made for a while is a warning of its own.
func TestStaleComparison(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 27, 9, 0, 0, 0, time.UTC)
	alive := []Timerd{{}}
	for _, c := range []struct {
		looked  time.Time
		timerds []Timerd
		want    string
	}{
		{time.Time{}, alive, ""},
		{at.Add(-ledger.Stale), alive, ""},
		{at.Add(-ledger.Stale - time.Second), nil, ""},
		{at.Add(-ledger.Stale - time.Second), alive,
			"no timerd has compared the account with TIMERS since 2026-11-27T08:49:59Z"},
	} {
		f := &facts{ledger: ledger.Seen{Looked: c.looked}, redis: &Redis{Timerds: c.timerds}, nats: &NATS{
			Streams: []Stream{{Name: "TIMERS_DEAD"}, {Name: "TIMERS", info: &jetstream.StreamInfo{TimeStamp: at}}},
		}}
		var found diag.Findings
		checkAccount(f, &found)
		switch {
		case c.want == "" && len(found) == 0:
		case len(found) != 1 || found[0].Level != diag.Warn || found[0].Text != c.want ||
			!strings.Contains(found[0].Fix, "timerd account"):
			t.Errorf("%+v, want %q", found, c.want)
		}
	}
}

// Events that differ from the timers fired are a warning once they have done so for a minute.
func TestUnexplainedEvents(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 27, 9, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		least, most int64
		lasts       time.Duration
		text, fix   string
	}{
		{0, 3, 0, "", ""},
		{2, 3, time.Minute - 1, "", ""},
		{2, 3, time.Minute, "TIMERS has 2 events since 2026-11-27T09:00:00Z, or more, that the account does not know",
			"somebody else publishes to timers.fired.>; once you know why: timerd status --acknowledge"},
		{-3, -1, time.Hour, "TIMERS lacks the events of 1 timer fired since 2026-11-27T09:00:00Z, or of more",
			"the stream has lost events"},
	} {
		compared := ledger.Comparison{Since: at, Least: c.least, Most: c.most, At: at.Add(2 * time.Hour)}
		if c.least > 0 || c.most < 0 {
			compared.Unexplained = compared.At.Add(-c.lasts)
		}
		var found diag.Findings
		checkAccount(&facts{ledger: ledger.Seen{Comparison: compared}}, &found)
		switch {
		case c.text == "" && len(found) == 0:
		case len(found) != 1 || found[0].Level != diag.Warn || found[0].Text != c.text ||
			!strings.Contains(found[0].Fix, c.fix):
			t.Errorf("%+v, want %q", found, c.text)
		}
	}
}

// Repeated reports use a timerd's reading if it is newer than their own, until it is too old, or the timerds have
// stored none. A failed look into NATS changes nothing.
func TestReportsShareTheAccount(t *testing.T) {
	t.Parallel()
	s := schedule.New(testenv.Redis(t).Client(), schedule.DefaultMaxPayload)
	now, shared := time.Date(2026, 11, 27, 9, 0, 0, 0, time.UTC), &schedule.Account{Opening: 7}
	seen := func(ago time.Duration, a *schedule.Account) ledger.Seen {
		return ledger.Seen{Looked: now.Add(-ago), Account: a}
	}
	var r RecentAccount
	for i, c := range []struct {
		seen    ledger.Seen
		now     time.Time
		opening int64
	}{
		{seen(accountAge, shared), now, 0},
		{seen(0, shared), time.Time{}, 0},
		{seen(0, shared), now, 7},
		{ledger.Seen{}, now, 7},
		{seen(time.Second, nil), now, 0},
		{seen(2*time.Second, shared), now, 0},
		{seen(-time.Second, shared), now, 7},
		{seen(-time.Second, shared), now.Add(time.Hour), 7},
	} {
		r.take(c.seen, c.now)
		if a := r.get(t.Context(), s); a == nil || a.Opening != c.opening {
			t.Errorf("%d: %+v, want %d", i, a, c.opening)
		}
	}
	var none *RecentAccount
	none.take(seen(0, shared), now)
	if a := none.get(t.Context(), s); a == nil || a.Opening != 0 {
		t.Errorf("a single report: %+v", a)
	}
}
