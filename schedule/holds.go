package schedule

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/keys"
)

// Limits on the number of holds, and on the bytes of their copy, which each claim reads in up to 40 µs.
const (
	MaxHolds      = 32
	maxHoldsBytes = 4096
)

// ErrTooManyHolds says that there is no room for another hold.
var ErrTooManyHolds = fmt.Errorf(
	"there is no room for another hold: there may be %d, with %d bytes in all: resume one, "+
		"or hold a namespace that covers several, such as the app",
	MaxHolds, maxHoldsBytes)

// ResumeKind is the fate of held timers at the end of their hold.
type ResumeKind string

// The kinds of resumes.
const (
	ResumeNow   ResumeKind = "now"   // they fire at once, by due time
	ResumeRate  ResumeKind = "rate"  // they fire at a limited rate
	ResumeShift ResumeKind = "shift" // their dues move by the length of the hold
	ResumeDead  ResumeKind = "dead"  // they become dead letters
)

// Hold keeps the timers of a namespace from being claimed. While it is being resumed, only the timers that are already
// held wait for their release. Times are of the Redis server's clock, in ms.
type Hold struct {
	Namespace keys.Namespace `json:"-"`
	Since     Millis         `json:"since"`
	Until     Millis         `json:"until,omitempty"` // its end by itself; 0: none
	For       int64          `json:"for,omitempty"`   // its intended length when Until was set, in ms
	Reason    string         `json:"reason,omitempty"`
	By        string         `json:"by,omitempty"`
	Resume    *Resume        `json:"resume,omitempty"` // nil until it is resumed

	next float64 // the next time that a resume at a rate draws, in unix ms; 0 if it is not known
}

// Resume is the way in which a hold is being resumed.
type Resume struct {
	Kind ResumeKind `json:"kind"`
	Rate float64    `json:"rate,omitempty"` // of ResumeRate, timers a second
	At   Millis     `json:"at"`             // its beginning; timers due later are not held
	By   string     `json:"by,omitempty"`
}

// Lasts reports whether the hold is in force at a time: whether no timer of the namespace is claimed.
func (h *Hold) Lasts(at Millis) bool { return h.Resume == nil && (h.Until == 0 || at < h.Until) }

// bounded returns the hold as a correct clock would have made it: it begins by now, and ends at most its intended
// length after now. Only a hold made while the clock was ahead differs.
func (h Hold) bounded(now Millis) Hold {
	lasts := cmp.Or(Millis(h.For), h.Until-h.Since) // an earlier version has written no For
	if lasts > 0 && h.Until > now.Add(AheadBy)+lasts {
		h.Until = now + lasts
	}
	if h.Since > now.Add(AheadBy) {
		h.Since = now
	}
	return h
}

// holds reports whether a timer of the namespace with a due time is held at a time.
func (h *Hold) holds(due, at Millis) bool {
	return h.Lasts(at) || h.Resume != nil && h.Resume.Kind != ResumeNow && due <= h.Resume.At
}

// HoldList is all holds, as [Schedule.Holds] has read them. Its methods are the steps on holds; one that changes the
// list updates this copy too.
type HoldList struct {
	schedule *Schedule

	Holds      []Hold // in the order of their namespaces
	Generation int64  // grows with each change; 0 if there never was a hold
	Now        Millis
	newest     int64 // the newest generation that a copy of the list has
	// renamed has the fields whose names an earlier version spelled differently. A change of their hold replaces them.
	renamed map[keys.Namespace]string
}

// Find returns the hold on exactly this namespace, or nil if there is none.
func (l *HoldList) Find(n keys.Namespace) *Hold {
	if i := slices.IndexFunc(l.Holds, func(h Hold) bool { return h.Namespace == n }); i >= 0 {
		return &l.Holds[i]
	}
	return nil
}

// Covers reports whether a timer with the given due time is held.
func (l *HoldList) Covers(k keys.Key, due Millis) bool { return l.Over(k, due) != nil }

// Over returns a hold that covers a timer with the given due time, or nil.
func (l *HoldList) Over(k keys.Key, due Millis) *Hold {
	if i := slices.IndexFunc(l.Holds,
		func(h Hold) bool { return h.holds(due, l.Now) && h.Namespace.Match(k) }); i >= 0 {
		return &l.Holds[i]
	}
	return nil
}

// MadeAhead returns the holds that were made while the clock was ahead, as a correct clock would have made them. It
// omits holds that are being resumed.
func (l *HoldList) MadeAhead() (ahead []Hold) {
	for _, h := range l.Holds {
		if right := h.bounded(l.Now); h.Resume == nil && right != h {
			ahead = append(ahead, right)
		}
	}
	return ahead
}

// text is the list as the scripts take it, without the generation.
func (l *HoldList) text() string {
	if len(l.Holds) == 0 {
		return "none"
	}
	var b strings.Builder
	for _, h := range l.Holds {
		cutoff := Millis(0)
		if h.Resume != nil {
			if h.Resume.Kind == ResumeNow {
				continue
			}
			cutoff = h.Resume.At
		}
		n := h.Namespace
		until := h.Until
		if cutoff > 0 {
			until = 0
		}
		fmt.Fprintf(&b, "%d,%d,%d,%d,%d:%s%s%s", until, cutoff, len(n.App), len(n.Module), len(n.Type), n.App, n.Module,
			n.Type)
	}
	return b.String()
}

// claimGeneration is the generation that claims state.
func (l *HoldList) claimGeneration() int64 {
	if text := l.text(); text == "none" || text == "" {
		return 0
	}
	return l.Generation
}

// copied is the generation that the copies of the list state: 0 where there are none, since there are no holds.
func (l *HoldList) copied() int64 {
	if len(l.Holds) == 0 {
		return 0
	}
	return l.Generation
}

// generationField is the field of the list with its generation. Fields other than namespaces begin with a colon; no
// namespace does.
const generationField = ":generation:"

// nextField begins the name of the field with the time of the next timer of a resume at a rate.
const nextField = ":next:"

// Holds reads the list of holds. From then on a server with an older copy refuses claims of this Schedule.
func (s *Schedule) Holds(ctx context.Context) (*HoldList, error) {
	var now func() time.Time
	var fields *redis.MapStringStringCmd
	err := s.Pipelined(ctx, keys.Single, func(pipe redis.Pipeliner) error {
		fields = pipe.HGetAll(ctx, keys.Single.Holds())
		now = s.dueClock(ctx, pipe) // afterwards: no hold of the list is made later than now
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("schedule: read the holds: %w", s.blame(keys.Single, err))
	}
	l := &HoldList{schedule: s, Now: MillisOf(now()), renamed: map[keys.Namespace]string{}}
	l.Generation, _ = strconv.ParseInt(fields.Val()[generationField], 10, 64)
	for _, name := range slices.Sorted(maps.Keys(fields.Val())) {
		if strings.HasPrefix(name, ":") {
			continue
		}
		var h Hold
		n, err := keys.ReadNamespace(name)
		if err == nil && n.String() != name {
			l.renamed[n] = name
			if _, ok := fields.Val()[n.String()]; ok {
				continue
			}
		}
		if err == nil {
			err = json.Unmarshal([]byte(fields.Val()[name]), &h)
		}
		if err != nil {
			return nil, fmt.Errorf("schedule: the hold of %q in %s cannot be read: %w; "+
				"a later version may have written it: use that, or remove the field", name, keys.Single.Holds(), err)
		}
		h.Namespace = n
		h.next, _ = strconv.ParseFloat(fields.Val()[nextField+n.String()], 64)
		l.Holds = append(l.Holds, h)
	}
	slices.SortFunc(l.Holds, byNamespace)
	s.holding.Store(l.claimGeneration())
	return l, nil
}

// KnownHolds returns the list of holds, or an empty one if PassOver has excluded the master that has it. A held timer
// then counts as owed until a claim has looked at it.
func (s *Schedule) KnownHolds(ctx context.Context) (*HoldList, error) {
	list, err := s.Holds(ctx)
	_, away := errors.AsType[Away](err)
	if len(s.PassedOver()) == 0 || !away {
		return list, err
	}
	now, err := s.Clock(ctx)
	return &HoldList{schedule: s, Now: MillisOf(now)}, err
}

// ErrHoldsChanged says that the list of holds was changed by somebody else after it was read.
var ErrHoldsChanged = errors.New("somebody else has changed the holds meanwhile")

// Put puts a hold into the list, in place of one of the same namespace. In a cluster it is in force in all partitions
// once CopyTo has succeeded. An error may wrap ErrHoldsChanged, or for a new hold ErrTooManyHolds; after any other
// error the list may or may not have changed.
func (l *HoldList) Put(ctx context.Context, h Hold) error {
	said, err := json.Marshal(h)
	if err != nil {
		return fmt.Errorf("schedule: hold %s: %w", h.Namespace, err)
	}
	holds := append(slices.DeleteFunc(slices.Clone(l.Holds), func(o Hold) bool { return o.Namespace == h.Namespace }),
		h)
	next := HoldList{Holds: holds}
	if l.Find(h.Namespace) == nil && (len(holds) > MaxHolds || len(next.text()) > maxHoldsBytes) {
		return fmt.Errorf("hold %s: %w", h.Namespace, ErrTooManyHolds)
	}
	return l.write(ctx, holds, h.Namespace, string(said))
}

// Remove takes a hold out of the list, with the errors of Put.
func (l *HoldList) Remove(ctx context.Context, n keys.Namespace) error {
	rest := slices.DeleteFunc(slices.Clone(l.Holds), func(o Hold) bool { return o.Namespace == n })
	return l.write(ctx, rest, n, "")
}

// byNamespace orders holds by their namespaces.
func byNamespace(a, b Hold) int { return strings.Compare(a.Namespace.String(), b.Namespace.String()) }

// write writes the new list, in which the hold of a namespace has changed, and notes the result.
func (l *HoldList) write(ctx context.Context, holds []Hold, changed keys.Namespace, said string) error {
	fields := []any{changed.String(), said}
	if name, ok := l.renamed[changed]; ok {
		fields = append(fields, name, "")
	}
	return l.writeFields(ctx, holds, fields...)
}

// writeFields writes the new list, with the changed fields, and notes the result.
func (l *HoldList) writeFields(ctx context.Context, holds []Hold, fields ...any) error {
	slices.SortFunc(holds, byNamespace)
	s, next := l.schedule, HoldList{schedule: l.schedule, Holds: holds, Now: l.Now, renamed: maps.Clone(l.renamed)}
	for i := 0; i < len(fields); i += 2 {
		maps.DeleteFunc(next.renamed, func(_ keys.Namespace, name string) bool { return name == fields[i] })
	}
	args := append([]any{l.Generation, l.newest, next.text()}, fields...)
	generation, err := s.Run(ctx, s.step("hold_write"), []Call{{Partition: keys.Single, Args: args}})[0].Int64()
	switch {
	case err != nil:
		return fmt.Errorf("schedule: write the holds: %w", err)
	case generation < 0:
		return fmt.Errorf("schedule: write the holds: %w", ErrHoldsChanged)
	}
	next.Generation, next.newest = generation, l.newest
	*l = next
	s.holding.Store(l.claimGeneration())
	return nil
}

// CopyTo updates the copies of the list in the partitions of a node. It returns the partitions whose slots are moving:
// their copies are unchanged, and their timers wait. If a copy is newer, the list was lost in a failover. Outdated then
// reports it, and the next change of the list makes it newer than that copy.
func (l *HoldList) CopyTo(ctx context.Context, n *Node) (moving []keys.Partition, err error) {
	args := []any{l.Generation, l.text()}
	err = n.runOnHolds(ctx, "hold_copy", args, func(cmd *redis.Cmd) error {
		reply, err := ReadReply(cmd, 1, 1)
		if err != nil {
			return err
		}
		l.newest = max(l.newest, reply.Int(0))
		for i := 1; i < len(reply); i++ {
			moving = append(moving, keys.Partition(reply.Text(i)))
		}
		return nil
	})
	if err != nil {
		return moving, fmt.Errorf("schedule: copy the holds to %s: %w", n.server.Options().Addr, err)
	}
	return moving, nil
}

// Outdated reports whether a copy of the list is newer than the list, which was then lost in a failover. Renew repairs
// that.
func (l *HoldList) Outdated() bool { return l.newest > l.Generation }

// Learn takes over the newest generation of a copy from another reading of the list.
func (l *HoldList) Learn(other *HoldList) { l.newest = max(l.newest, other.newest) }

// Renew makes a list newer than all of its copies.
func (l *HoldList) Renew(ctx context.Context) error {
	return l.writeFields(ctx, slices.Clone(l.Holds))
}

// HoldAnswer bounds a server's answer about the holds of some partitions. A master of a cluster gives up to 64 such
// answers: if it gives each in time it is not silent, however long all take.
const HoldAnswer = 1500 * time.Millisecond

// runOnHolds runs a step on all partitions of the node, as [Master.RunOver] does, and waits HoldAnswer for each answer.
func (n *Node) runOnHolds(ctx context.Context, step string, args []any, read func(*redis.Cmd) error) error {
	return n.Master().eachChunk(Chunk, func(hashTags []any) error {
		ctx, cancel := context.WithTimeout(ctx, HoldAnswer)
		defer cancel()
		return read(n.schedule.step(step).Run(ctx, n.server, nil, slices.Concat(args, hashTags)...))
	})
}

// HeldPart is a partition with held timers.
type HeldPart struct {
	Partition keys.Partition
	Held      int64 // of any namespace
	Unseen    bool  // others of the namespace are due, and no claim has looked at them yet
	Moving    bool  // its slot is moving, so nothing is known about it
}

// LookHeld returns the partitions of the node with held timers, or with timers of a namespace due up to cutoff that no
// claim has looked at yet. With cutoff 0 it looks for held timers only.
func (n *Node) LookHeld(ctx context.Context, cutoff Millis, of keys.Namespace) ([]HeldPart, error) {
	var parts []HeldPart
	args := []any{int64(cutoff), of.App, of.Module, of.Type}
	err := n.runOnHolds(ctx, "hold_look", args, func(cmd *redis.Cmd) error {
		reply, err := cmd.StringSlice()
		if err != nil {
			return err
		}
		for pair := range slices.Chunk(reply, 2) {
			count, err := strconv.ParseFloat(pair[len(pair)-1], 64)
			if err != nil {
				return err
			}
			parts = append(parts,
				HeldPart{keys.Partition(pair[0]), int64(count), count != math.Trunc(count), count < 0})
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("schedule: look for held timers: %w", err)
	}
	if slices.ContainsFunc(parts, func(p HeldPart) bool { return p.Moving }) {
		n.schedule.Reload(ctx) // it may be elsewhere by now
	}
	return parts, nil
}
