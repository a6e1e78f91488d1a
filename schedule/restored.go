package schedule

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/policy"
	"github.com/timerd-io/timerd/keys"
)

// Wait is the wait of the timers of a server that may have older data than before: it restarted, was promoted, or has
// got a backup. Each claim finds that out, in the step itself.
type Wait struct {
	Server string // host:port of a master of a cluster; "" for a single Redis
	Until  Millis // timers due until then wait; when it was found out
	Last   Millis // the last heartbeat of a timerd that the data have
	Ahead  bool   // that was of a clock that was ahead: it says nothing about the data
	Timers int64  // the number waiting, about; holds may keep some of them

	partitions map[keys.Partition]Millis // until when they wait in each
}

// Same reports whether it is the same wait of the same timers.
func (w Wait) Same(other Wait) bool { return maps.Equal(w.partitions, other.partitions) }

// Has reports whether a partition has timers that wait so.
func (w Wait) Has(p keys.Partition) bool {
	_, waits := w.partitions[p]
	return waits
}

// Holds reports whether an unclaimed timer without a hold waits so, by its due time.
func (w Wait) Holds(p keys.Partition, due Millis) bool { return w.Has(p) && due <= w.partitions[p] }

// waitsWithin bounds the look for waits on one server.
const waitsWithin = 5 * time.Second

// Waits returns the wait of each server with older data. With an *AwayError these are the waits of the servers that
// answer.
func (s *Schedule) Waits(ctx context.Context) ([]Wait, error) {
	masters, err := s.Masters(ctx)
	if err != nil {
		return nil, fmt.Errorf("schedule: read what waits in a restored Redis: %w", err)
	}
	all := make(map[string]*Wait, len(masters))
	for _, m := range masters {
		all[m.Name] = &Wait{Server: m.Name, partitions: map[keys.Partition]Millis{}}
	}
	err = askAll(ctx, masters, waitsWithin, func(ctx context.Context, m Master) error {
		return m.RunOver(ctx, s.step("waits"), Chunk, nil, all[m.Name].read)
	})
	if err != nil {
		err = fmt.Errorf("schedule: read what waits in a restored Redis: %w", err)
	}
	var waits []Wait
	for _, m := range masters {
		if w := all[m.Name]; len(w.partitions) > 0 {
			waits = append(waits, *w)
		}
	}
	return waits, err
}

const (
	// waitsKept is the time for which WaitsLately relies on a look without a wait. After a look that failed, or found a
	// wait, which another timerd may end, it relies on that for waitsKeptShort.
	waitsKept      = time.Minute
	waitsKeptShort = 5 * time.Second
)

// keptWaits keeps the last look for waits.
type keptWaits struct {
	look sync.Mutex // one look at a time
	last atomic.Pointer[waitsLook]
}

// waitsLook is a look for waits.
type waitsLook struct {
	at           time.Time
	incarnations string // before it
	changes      int64  // Schedule.waitChanges before it
	waits        []Wait
	err          error
}

// WaitsLately is Waits for callers that ask all the time. In a cluster, where a look asks all partitions, it keeps the
// last one for a minute, or until this process begins or ends a wait, or any timerd has compared a server's data anew.
// A wait that another timerd has ended may be returned for five seconds, and one that came with a slot may be missing
// for the minute. While it looks, other callers get the look before.
func (s *Schedule) WaitsLately(ctx context.Context) ([]Wait, error) {
	if !s.cluster {
		return s.Waits(ctx)
	}
	k := &s.keptWaits
	if last := k.last.Load(); last == nil {
		k.look.Lock()
	} else if !k.look.TryLock() {
		return last.waits, last.err
	}
	defer k.look.Unlock()
	now := waitsLook{at: time.Now(), incarnations: s.incarnations(ctx), changes: s.waitChanges.Load()}
	if last := k.last.Load(); last != nil && last.keeps(now) {
		return last.waits, last.err
	}
	if now.waits, now.err = s.Waits(ctx); ctx.Err() == nil {
		k.last.Store(&now)
	}
	return now.waits, now.err
}

// keeps reports whether the look still counts, as things are now.
func (w *waitsLook) keeps(now waitsLook) bool {
	keep := waitsKept
	if len(w.waits) > 0 || w.err != nil {
		keep = waitsKeptShort
	}
	return now.at.Sub(w.at) < keep && now.changes == w.changes && now.incarnations == w.incarnations
}

// incarnations returns the incarnations that the masters of a cluster had when their data were compared last, as far as
// the first home of each tells.
func (s *Schedule) incarnations(ctx context.Context) string {
	masters, err := s.Masters(ctx)
	if err != nil {
		return ""
	}
	said := make([]string, len(masters))
	var n atomic.Int64
	_ = askAll(ctx, masters, clockTimeout, func(ctx context.Context, m Master) error {
		if len(m.Partitions) > 0 {
			at := m.Partitions[0].Data()
			said[n.Add(1)-1] = m.Name + " " + m.Server.HGet(ctx, at, ":i:").Val()
		}
		return nil
	})
	slices.Sort(said)
	return strings.Join(said, "\n")
}

// read reads the waits of some partitions.
func (w *Wait) read(cmd *redis.Cmd) error {
	const row = 4
	reply, err := ReadReply(cmd, 0, row)
	if err != nil {
		return err
	}
	for i := 0; i < len(reply); i += row {
		until, err1 := strconv.ParseInt(reply.Text(i+1), 10, 64)
		last, err2 := strconv.ParseInt(reply.Text(i+2), 10, 64)
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		if len(w.partitions) == 0 || Millis(last) < w.Last {
			w.Last = Millis(last)
		}
		w.Until = max(w.Until, Millis(until))
		w.Ahead = w.Ahead || Millis(last) > Millis(until).Add(AheadBy)
		w.Timers += reply.Int(i + 3)
		w.partitions[keys.Partition(reply.Text(i))] = Millis(until)
	}
	return nil
}

// endedAtOnce bounds the partitions in which a round trip ends a wait.
const endedAtOnce = 128

// EndWait frees the timers that wait, but for those on hold. It does nothing where that wait has ended. In a restart of
// timerd, or of Redis, some may stay until the next minute. Beside an error it has freed some.
func (s *Schedule) EndWait(ctx context.Context, w Wait) error {
	defer s.waitChanges.Add(1)
	var failed error
	for some := range slices.Chunk(slices.Sorted(maps.Keys(w.partitions)), endedAtOnce) {
		calls := make([]Call, len(some))
		for i, p := range some {
			calls[i] = Call{Partition: p, Args: []any{int64(w.partitions[p])}}
		}
		for _, cmd := range s.Run(ctx, s.step("end_wait"), calls) {
			if failed == nil {
				failed = cmd.Err()
			}
		}
	}
	// A change of the list has a timerd look for held timers that no hold covers. Without holds it looks all the time.
	list, err := s.Holds(ctx)
	if err == nil && len(list.Holds) > 0 {
		err = list.Renew(ctx)
	}
	if err = cmp.Or(failed, err); err != nil {
		return fmt.Errorf("schedule: free what waits in a restored Redis: %w", err)
	}
	return nil
}

// restoredError begins a claim's error on a server of a cluster whose data are not compared.
const restoredError = "RESTORED timerd"

// home is the first of the partitions that note whether the data of a server of a cluster are compared.
type home struct {
	partition   keys.Partition
	incarnation string // of the server, when it was compared
}

// homes returns the prefixes of the partitions of a server that note that, as steps have them: the first, the middle
// and the last one, as slots mostly move from one end. It returns "" if they are unknown, or there is no cluster.
func (n *Node) homes(server *redis.Client) string {
	if !n.schedule.cluster {
		return ""
	}
	if server != n.server {
		if n = n.schedule.nodeOn(server); n == nil {
			return ""
		}
	}
	all := n.Master().Partitions
	if len(all) == 0 {
		return ""
	}
	return all[0].Prefix() + " " + all[len(all)/2].Prefix() + " " + all[len(all)-1].Prefix()
}

// nodeOn returns the node of a server, or nil if Nodes has not found it yet.
func (s *Schedule) nodeOn(server *redis.Client) *Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.nodes[server]
}

// compareData makes the timers of a server with perhaps older data wait; then claims go on. If the server is known to
// have lived since its data were compared, none wait.
func (n *Node) compareData(ctx context.Context) error {
	s, m, last := n.schedule, n.Master(), int64(-1)
	err := m.RunOver(ctx, s.step("last_beat"), Chunk, nil, func(cmd *redis.Cmd) error {
		found, err := cmd.Int64()
		last = max(last, found)
		return err
	})
	at := n.claimsPartition()
	n.mu.Lock()
	was := n.home
	n.mu.Unlock()
	args := []any{n.homes(n.server), last, s.forgiven.Load(), was.incarnation, was.partition != at}
	begin := func(hashTags []any) error {
		return s.step("begin_wait").Run(ctx, n.server, nil, slices.Concat(args, hashTags)...).Err()
	}
	if err == nil {
		err = m.eachChunk(Chunk, begin)
	}
	if err == nil {
		err = begin(nil)
	}
	if err != nil {
		return fmt.Errorf("schedule: look whether %s has older data: %w", n.name, err)
	}
	s.waitChanges.Add(1)
	return nil
}

// compareDataOf is compareData for the servers that have some partitions by now.
func (s *Schedule) compareDataOf(ctx context.Context, requests []ClaimRequest) error {
	compared := map[*redis.Client]bool{}
	for _, r := range requests {
		server, err := s.topology.server(ctx, r.Partition)
		if err != nil || compared[server] {
			continue // the claim says why it fails
		}
		compared[server] = true
		if n := s.nodeOn(server); n != nil {
			if err := n.compareData(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// SetDuplicates sets the duplicate window of the stream of firings, or the age of a younger stream. A failover or
// restart is forgiven if the last heartbeat is younger than half of it: JetStream then drops second events. Default: 0,
// none is.
func (s *Schedule) SetDuplicates(window time.Duration) { s.forgiven.Store((window / 2).Milliseconds()) }

// lastWait is the last wait that has ended, as a claim tells of it.
type lastWait struct {
	until, lastSeen Millis
	took            time.Duration // 0: it was forgiven
}

// apply notes what the wait means for a firing.
func (w lastWait) apply(f *Firing) {
	switch {
	case f.Due > w.until:
	case w.took > 0:
		f.Waited = w.took
	case f.Due >= w.lastSeen.Add(-f.Lease):
		f.MayBeStored = f.MayBeStored || f.Refusal == policy.Refusal{}
	}
}
