package query_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
)

// Overdue timers are read from the index itself, claimed or not, and timers that wait for a reason are counted
// separately.
func TestOverdue(t *testing.T) {
	t.Parallel()
	s := testenv.NewSchedule(t)
	now, err := s.Client.Time(t.Context()).Result()
	if err != nil {
		t.Fatal(err)
	}
	const held = 1 << 52
	at := func(ago time.Duration) float64 { return float64(now.Add(-ago).UnixMilli()) }
	old := int64(at(time.Hour))
	ref := func(attempt int, key string) string { return fmt.Sprintf("%d:%d:%s", old, attempt, key) }
	due, firing := keys.Single.Due(), keys.Single.Firing()
	z := func(score float64, member string) redis.Z { return redis.Z{Score: score, Member: member} }
	add := func(key string, members ...redis.Z) {
		t.Helper()
		if err := s.Client.ZAdd(t.Context(), key, members...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	count := func() query.Overdue {
		t.Helper()
		o, err := query.CountOverdue(t.Context(), s.Node, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	if o := count(); o.Timers != 0 || o.Entries != 0 || !o.Due.IsZero() {
		t.Errorf("an empty schedule: %+v", o)
	}
	add(due, z(at(2*time.Hour), "a:b:c:1"), z(at(time.Hour), ":1000.2:a:b:d:2"), z(at(time.Second), "a:b:c:3"),
		z(at(-time.Hour), "a:b:c:4"),
		z(at(-time.Minute), ":s1000.1:a:b:c:5"))
	add(keys.Single.Aside(), z(1000, ":s1000.1:a:b:c:5"))
	if o := count(); o.Timers != 2 || o.First.String() != "a:b:c:1" || o.Due.UnixMilli() != int64(at(2*time.Hour)) ||
		o.Parked != 1 || o.Held+o.Spaced != 0 ||
		!slices.Equal(o.Namespaces, []string{"a:b:c", "a:b:d"}) {
		t.Errorf("of due: %+v", o)
	}
	add(firing, z(at(-5*time.Second), ref(1, "f:b:c:claimed")), z(at(-5*time.Second)+.5, ref(1, "f:b:c:paused")),
		z(at(-5*time.Second)+.75, ref(1, "f:b:c:perhaps")),
		z(0, ref(1, "f:b:c:owed")), z(.25, ref(1, "f:b:c:freed")), // 5 that are overdue
		z(at(-5*time.Second)+.25, ref(1, "f:b:c:spaced")), z(held+float64(old), ref(1, "f:b:c:held")),
		z(0, ref(1, "f:b:c:refused")),
		z(at(-5*time.Second), fmt.Sprintf("%.0f:1:f:b:c:fresh", at(time.Second))), z(0, ref(0, "f:b:c:planned")))
	add(keys.Single.Refused(), z(float64(old), ref(1, "f:b:c:refused")))
	if o := count(); o.Timers != 7 || o.Held != 1 || o.Parked != 2 || o.Spaced != 1 || o.Over {
		t.Errorf("of firing: %+v", o)
	}

	// A hold, and one whose resume is under way.
	if err := s.Client.HSet(t.Context(), keys.Single.Data(), ":h:",
		fmt.Sprintf("1;0,0,1,0,0:h0,%.0f,1,0,0:r", at(0))).Err(); err != nil {
		t.Fatal(err)
	}
	add(due, z(at(time.Hour), "h:b:c:1"))
	add(firing, z(0, ref(1, "h:b:c:owed")), z(at(-5*time.Second), ref(1, "h:b:c:claimed")),
		z(at(-5*time.Second), ref(1, "r:b:c:claimed")))
	if o := count(); o.Timers != 8 || o.Held != 3 || o.Spaced != 2 {
		t.Errorf("with holds: %+v", o)
	}

	// With holds each entry is looked at, some 20,000 of them.
	for chunk := range 25 {
		var many []redis.Z
		for i := range 1000 {
			many = append(many, z(at(time.Hour), fmt.Sprintf("m:b:c:%d", 1000*chunk+i)))
		}
		add(due, many...)
	}
	if o := count(); o.Timers < 18000 || o.Timers > 22000 || !o.Over || o.Entries < 25000 {
		t.Errorf("of many: %+v", o)
	}
	if err := s.Client.HDel(t.Context(), keys.Single.Data(), ":h:").Err(); err != nil {
		t.Fatal(err)
	}
	if o := count(); o.Timers < 25000 || o.Over {
		t.Errorf("of many without holds: %+v", o)
	}
}

// What one call leaves others look at, and nothing is counted twice.
func TestOverdueInRounds(t *testing.T) {
	t.Parallel()
	for name, holds := range map[string]string{"without holds": "", "with holds": "1;0,0,1,0,0:h"} {
		s := testenv.NewSchedule(t)
		old := s.Client.Time(t.Context()).Val().Add(-time.Hour).UnixMilli()
		var due, firing, aside []redis.Z
		for i := range 2500 {
			due = append(due, redis.Z{Score: float64(old), Member: fmt.Sprintf("a:b:c:%d", i)})
			firing = append(firing, redis.Z{Score: 1, Member: fmt.Sprintf("%d:1:a:b:c:f%d", old, i)})
		}
		for i := range 7 {
			due = append(due, redis.Z{Score: float64(old), Member: fmt.Sprintf(":s1000.%d:a:b:c:1", i)})
			aside = append(aside, redis.Z{Score: 1000, Member: fmt.Sprintf(":s1000.%d:a:b:c:1", i)})
			firing = append(firing, redis.Z{Score: float64(int64(1)<<52 + old),
				Member: fmt.Sprintf("%d:1:a:b:c:h%d", old, i)})
		}
		_, err := s.Client.Pipelined(t.Context(), func(pipe redis.Pipeliner) error {
			pipe.ZAdd(t.Context(), keys.Single.Due(), due...)
			pipe.ZAdd(t.Context(), keys.Single.Firing(), firing...)
			pipe.ZAdd(t.Context(), keys.Single.Aside(), aside...)
			if holds != "" {
				pipe.HSet(t.Context(), keys.Single.Data(), ":h:", holds)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		o, err := query.CountOverdue(t.Context(), s.Node, time.Minute)
		if err != nil || o.Timers != 5000 || o.Entries != 5007 || o.Held != 7 || o.Parked != 7 || o.Over {
			t.Errorf("%s: %+v, %v; want 5000 timers of 5007 entries, 7 held and 7 set aside", name, o, err)
		}
	}
}
