package schedule_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// beat sends a heartbeat of a timerd whose heartbeats were all answered.
func (x *index) beat(self schedule.Self) {
	x.t.Helper()
	self.Steady = true
	if _, err := x.Heartbeat(x.t.Context(), self, time.Minute); err != nil {
		x.t.Fatal(err)
	}
}

// members returns the timerds of the schedule: "id rank" for the living, "id dead" for the others.
func (x *index) members() (said []string, all map[string]query.Member) {
	x.t.Helper()
	members, err := query.Members(x.t.Context(), x.Schedule)
	if err != nil {
		x.t.Fatal(err)
	}
	all = map[string]query.Member{}
	for _, m := range members {
		how := "dead"
		if m.Alive {
			how = fmt.Sprint(m.Rank)
		}
		said = append(said, m.Instance+" "+how)
		all[m.Instance] = m
	}
	return said, all
}

// saidBy returns the ids of the timerds whose descriptions are kept.
func (x *index) saidBy() []string {
	x.t.Helper()
	all, err := x.rdb.HGetAll(x.t.Context(), keys.Single.About()).Result()
	if err != nil {
		x.t.Fatal(err)
	}
	return slices.Sorted(maps.Keys(all))
}

// age moves a timerd's last heartbeat into the past.
func (x *index) age(instance string, by time.Duration) {
	x.t.Helper()
	at := float64(x.redisNow() - by.Milliseconds())
	if err := x.rdb.ZAdd(x.t.Context(), keys.Single.Members(), redis.Z{Score: at, Member: instance}).Err(); err != nil {
		x.t.Fatal(err)
	}
}

func TestMembersSayWhoTheyAre(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	since := time.UnixMilli(1763629200000).UTC()
	settings := map[string]string{"TIMERD_LEASE": "10s"}
	b := schedule.Self{Instance: "b", Version: "v2", Host: "host-b", PID: 7, Since: since, Settings: settings}
	x.beat(b)
	x.beat(schedule.Self{Instance: "c", Settings: map[string]string{"TIMERD_LEASE": "20s"}})
	x.age("a", time.Second)      // of an earlier version, it says nothing of itself
	x.age("old", 10*time.Second) // likewise, and has died
	x.beat(schedule.Self{Instance: "0", CannotPublish: true})
	x.age("ahead", -time.Minute) // by a clock that was ahead

	said, all := x.members()
	if want := []string{"0 3", "a 0", "ahead dead", "b 1", "c 2", "old dead"}; !slices.Equal(said, want) {
		t.Errorf("members %q, want %q", said, want)
	}
	got := all["b"]
	if got.Version != "v2" || got.Host != "host-b" || got.PID != 7 || !got.Since.Equal(since) ||
		!maps.Equal(got.Settings, settings) {
		t.Errorf("b says %+v", got.Self)
	}
	if seen := x.redisNow() - got.Seen.UnixMilli(); seen < 0 || seen > time.Minute.Milliseconds() {
		t.Errorf("b was seen %d ms ago", seen)
	}
	if all["b"].Fingerprint() == all["c"].Fingerprint() || all["b"].Fingerprint() != b.Fingerprint() ||
		all["a"].Fingerprint() != "" {
		t.Errorf("fingerprints %q, %q and %q", all["a"].Fingerprint(), all["b"].Fingerprint(), all["c"].Fingerprint())
	}
	if all["old"].Seen.IsZero() {
		t.Error("nothing is known of when the dead one was seen")
	}
}

// The descriptions of the dead are forgotten with them, and a lost description is written again.
func TestMembersAreForgotten(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.beat(schedule.Self{Instance: "a"})
	x.beat(schedule.Self{Instance: "b"})
	x.beat(schedule.Self{Instance: "c"})
	x.age("b", 2*time.Minute)
	x.beat(schedule.Self{Instance: "a"})
	if said := x.saidBy(); !slices.Equal(said, []string{"a", "c"}) {
		t.Errorf("kept of %q, want a and c", said)
	}
	if err := x.Deregister(t.Context(), schedule.Self{Instance: "c"}); err != nil {
		t.Fatal(err)
	}
	if said := x.saidBy(); !slices.Equal(said, []string{"a"}) {
		t.Errorf("kept of %q, want a", said)
	}
	x.do("FLUSHALL")
	x.beat(schedule.Self{Instance: "a", Version: "v1"})
	if _, all := x.members(); all["a"].Version != "v1" {
		t.Errorf("after a loss of all data: %+v", all)
	}
	x.do("DEL", keys.Single.About())
	x.beat(schedule.Self{Instance: "a", Version: "v1"})
	if _, all := x.members(); all["a"].Version != "v1" {
		t.Errorf("after the loss of its description: %+v", all)
	}
}

// A silent timerd is kept apart until it is heard of again, or for a day. A timerd that was without answers itself
// finds nobody silent.
func TestSilentTimerds(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	beats := func(id string, steady, missed bool) {
		t.Helper()
		got, err := x.Heartbeat(t.Context(), schedule.Self{Instance: id, Steady: steady}, time.Minute)
		if err != nil || got.Missed != missed || !slices.Contains(got.Alive, id) ||
			slices.Contains(got.Alive, "silent") && id != "silent" {
			t.Errorf("%s: %+v, %v; want it to be missed: %t", id, got, err, missed)
		}
	}
	are := func(want ...string) {
		t.Helper()
		_, all := x.members()
		var silent []string
		for _, id := range slices.Sorted(maps.Keys(all)) {
			if all[id].Silent {
				silent = append(silent, id)
			}
		}
		if !slices.Equal(silent, want) {
			t.Errorf("silent are %q, want %q", silent, want)
		}
	}
	x.age("silent", time.Hour)
	x.age("ahead", -time.Hour)
	beats("a", false, false)
	are()
	beats("a", true, false)
	are("silent")
	if _, all := x.members(); x.redisNow()-all["silent"].Seen.UnixMilli() < time.Hour.Milliseconds() ||
		all["silent"].Alive {
		t.Errorf("%+v", all["silent"])
	}
	beats("silent", false, true)
	are()
	beats("silent", true, false)
	if err := x.Deregister(t.Context(), schedule.Self{Instance: "silent"}); err != nil {
		t.Fatal(err)
	}
	beats("a", true, false)
	are()

	x.age("forgotten", 25*time.Hour)
	var want []string
	for i := range 120 {
		id := fmt.Sprintf("m%03d", i)
		x.age(id, 2*time.Hour-time.Duration(i)*time.Second)
		if i >= 20 {
			want = append(want, id)
		}
	}
	beats("a", true, false)
	are(want...)
}

// Descriptions by somebody else are removed all at once, so that reading does not take longer and longer.
func TestMembersAmongStrangers(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	for i := range 1001 {
		x.do("HSET", keys.Single.About(), fmt.Sprint("stranger", i), "{}")
	}
	x.beat(schedule.Self{Instance: "a", Version: "v1"})
	x.beat(schedule.Self{Instance: "a", Version: "v1"})
	if said := x.saidBy(); !slices.Equal(said, []string{"a"}) {
		t.Errorf("%d have said something, want one", len(said))
	}
}

// Senseless entries, perhaps left by another version or by somebody else, count as nothing.
func TestMembersThatMakeNoSense(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.age("a", 0)
	x.do("HSET", keys.Single.About(), "a", `{"version":7`, "b", "{}")
	if said, all := x.members(); !slices.Equal(said, []string{"a 0"}) || all["a"].Version != "" {
		t.Errorf("members %q, %+v", said, all)
	}
}
