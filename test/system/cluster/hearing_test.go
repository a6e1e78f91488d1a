package cluster_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/test/system"
)

// The two timerds that hear a master die, with the master that has the heartbeats silent, as when a host goes away. The
// third begins to listen, and hears of timers set there.
func TestClusterThirdHearsWithoutHeartbeats(t *testing.T) {
	t.Parallel()
	s := newClusterSystem(t, false, partial())
	all := []*system.Daemon{s.Start(), s.Start(), s.Start()}
	c := s.Collect()
	heartbeats := s.owner(keys.Single.Slot())
	node := s.othersOf(heartbeats)[0]
	client := node.Client()
	// listeners returns the timerds that hear the node, and the others.
	listeners := func() (hear, others []*system.Daemon) {
		var ids []string
		for _, set := range client.Keys(t.Context(), "timerd:*:hearing").Val() {
			ids = append(ids, client.ZRange(t.Context(), set, 0, -1).Val()...)
		}
		for _, p := range all {
			if strings.Contains(strings.Join(ids, " "), fmt.Sprintf("-%d-", p.Cmd.Process.Pid)) {
				hear = append(hear, p)
			} else {
				others = append(others, p)
			}
		}
		return hear, others
	}
	var hear, others []*system.Daemon
	testenv.Eventually(t, system.Patience, func() error {
		subscribed := int64(0)
		for _, n := range client.PubSubShardNumSub(t.Context(),
			client.PubSubShardChannels(t.Context(), "*").Val()...).Val() {
			subscribed += n
		}
		alive := heartbeats.Client().ZCard(t.Context(), keys.Single.Members()).Val()
		if hear, others = listeners(); len(hear) != 2 || subscribed != 2 || alive != 3 {
			return fmt.Errorf("%d of %d hear %s, and %d are subscribed", len(hear), alive, node.Addr(), subscribed)
		}
		return nil
	}, "two of three to hear a master")
	heartbeats.Pause()
	for _, p := range hear {
		p.Kill()
	}
	lost := time.Now()
	third := others[0]
	testenv.Eventually(t, system.Patience, func() bool {
		hear, _ := listeners()
		return slices.Contains(hear, third)
	}, "the third to hear the master")
	took := time.Since(lost)
	t.Logf("the third hears after %v", took)
	if took > 30*time.Second { // four calls that each take until the client gives up
		t.Errorf("the third hears after %v, want about 4 s", took)
	}
	var want []string
	for _, key := range s.keysOn(node, "plain", 20) {
		if err := client.Set(t.Context(), key, "p", 2*time.Second).Err(); err != nil {
			t.Fatal(err)
		}
		want = append(want, key+"=p")
	}
	s.Expect(c, want...)
	heartbeats.Resume()
	third.AwaitReady(true)
	s.StatusSays(0, "warn  2 timerds are silent and did not end in order")
	third.Stop()
}
