package query_test

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/devserver"
	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// Of the other databases of a server it is known which have timers and which have a living timerd. Each look asks a
// bounded number.
func TestOtherDatabases(t *testing.T) {
	t.Parallel()
	const most = 1000
	server := testenv.Redis(t, devserver.Directive("databases", fmt.Sprint(most)))
	at := func(db int) *redis.Client {
		return server.Client(func(o *redis.Options) { o.DB, o.PoolSize = db, 1 })
	}
	own := schedule.New(at(2), schedule.DefaultMaxPayload)
	if _, err := own.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	nodes, err := own.Nodes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if all := query.OtherDatabases(t.Context(), nodes[0]); len(all) > 0 {
		t.Errorf("of an empty server: %+v", all)
	}
	set := func(db int, key string) {
		t.Helper()
		if err := at(db).FCall(t.Context(), "timer_set", []string{key}, "p", "PX", 3600_000).Err(); err != nil {
			t.Fatal(err)
		}
	}
	beat := func(db int, silence, ago time.Duration) {
		t.Helper()
		s := schedule.New(at(db), schedule.DefaultMaxPayload)
		there, err := s.Nodes(t.Context())
		if err == nil {
			_, err = there[0].Heartbeat(t.Context(), schedule.Self{Instance: fmt.Sprint("t", db)}, silence)
		}
		now := at(db).Time(t.Context()).Val()
		if err == nil {
			err = at(db).ZAdd(t.Context(), keys.Single.Members(),
				redis.Z{Score: float64(now.Add(-ago).UnixMilli()), Member: fmt.Sprint("t", db)}).Err()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	set(0, "a:b:c:1")
	set(0, "a:b:c:2")
	set(2, "a:b:c:own")
	set(5, "a:b:c:1")
	beat(5, time.Minute, 10*time.Second) // alive if it gives its own limit of silence
	set(7, "a:b:c:1")
	beat(7, 4*time.Second, 10*time.Second)
	beat(9, time.Minute, 0)
	if err := at(11).Set(t.Context(), "k", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	want := []query.Database{{Number: 0, Timers: 2}, {Number: 5, Timers: 1, Timerd: "t5"}, {Number: 7, Timers: 1},
		{Number: 9, Timerd: "t9"}, {Number: 11}}
	byNumber := func(a, b query.Database) int { return cmp.Compare(a.Number, b.Number) }
	all := query.OtherDatabases(t.Context(), nodes[0])
	if slices.SortFunc(all, byNumber); !slices.Equal(all, want) {
		t.Errorf("%+v, want %+v", all, want)
	}

	filler := at(20)
	if _, err := filler.Pipelined(t.Context(), func(pipe redis.Pipeliner) error {
		for db := 20; db < most; db++ {
			pipe.Do(t.Context(), "SELECT", db)
			pipe.Set(t.Context(), "k", "v", 0)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	var d query.Databases
	var seen []int
	for range 4 {
		seen = append(seen, len(d.Look(t.Context(), nodes[0])))
	}
	if !slices.Equal(seen, []int{256, 512, 768, most - 20 + 5}) {
		t.Errorf("known after each look: %d", seen)
	}
	set(500, "a:b:c:1")
	testenv.Eventually(t, time.Minute, func() error {
		for _, one := range d.Look(context.WithoutCancel(t.Context()), nodes[0]) {
			if one.Number == 500 && one.Timers == 1 {
				return nil
			}
		}
		return fmt.Errorf("database 500 has no timer")
	}, "the timer in another round")
}

// Without the right to change the database, there is no further try for a while: Redis keeps a record of each refusal.
func TestOtherDatabasesWithoutTheRight(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	admin := server.Client()
	for _, args := range [][]any{{"ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all", "-select"},
		{"SELECT", 1}} {
		if err := admin.Do(t.Context(), args...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	other := server.Client(func(o *redis.Options) { o.DB = 1 })
	if err := other.ZAdd(t.Context(), keys.Single.Due(), redis.Z{Member: "a:b:c:1"}).Err(); err != nil {
		t.Fatal(err)
	}
	app := server.Client(func(o *redis.Options) { o.Username, o.Password = "app", "pw" })
	nodes, err := schedule.New(app, schedule.DefaultMaxPayload).Nodes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var d query.Databases
	for range 3 {
		if all := d.Look(t.Context(), nodes[0]); len(all) > 0 {
			t.Errorf("%+v", all)
		}
	}
	log, err := admin.ACLLog(t.Context(), -1).Result()
	if err != nil || len(log) != 1 || log[0].Object != "select" || log[0].Count != 1 {
		t.Errorf("refused: %+v, %v, want once", log, err)
	}
}
