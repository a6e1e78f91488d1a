package client_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/schedule"
)

func TestTimersOnACluster(t *testing.T) {
	t.Parallel()
	rdb := testenv.Cluster(t, 3, false).Client()
	if _, err := schedule.New(rdb, schedule.DefaultMaxPayload).Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	timers := client.New(rdb)
	var settings []client.Setting
	for i := range 100 {
		settings = append(settings, client.Setting{Key: fmt.Sprintf("a:b:c:%d", i), Payload: fmt.Append(nil, i),
			When: client.After(time.Hour)})
	}
	results, err := timers.SetMany(t.Context(), settings)
	if err != nil {
		t.Fatal(err)
	}
	for i, result := range results {
		if result.Err != nil {
			t.Fatalf("%s: %v", settings[i].Key, result.Err)
		}
	}
	if _, err := timers.Set(t.Context(), "a:b:c:7", []byte("seven"), client.After(time.Minute), client.XX(),
		client.Attempt(3), client.DropLate(time.Minute)); err != nil {
		t.Error(err)
	}
	timer, found, err := timers.Get(t.Context(), "a:b:c:7")
	if err != nil || !found || string(timer.Payload) != "seven" || timer.Attempt != 3 || timer.Late != time.Minute {
		t.Errorf("got %+v, %v, %v", timer, found, err)
	}
	for i := range 100 {
		want := client.Cancelled
		for range 2 {
			if outcome, err := timers.Cancel(t.Context(), fmt.Sprintf("a:b:c:%d", i)); err != nil || outcome != want {
				t.Errorf("cancel %d: %s, %v; want %s", i, outcome, err, want)
			}
			want = client.Unknown
		}
	}
}
