// Package nemesis breaks things. It makes a plan of faults from a seed, and carries it out. Between faults there is a
// calm time, so that the effects of each fault are distinct.
package nemesis

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/timerd-io/timerd/torture/internal/history"
	"github.com/timerd-io/timerd/torture/internal/servers"
)

// part is a set of broken parts, in bits. Faults of different parts can be combined.
type part int

const (
	timerdPart part = 1 << iota
	redisPart
	natsPart
	crowdPart // the producers: one of them sets too many timers
)

// kind is a kind of fault.
type kind struct {
	name     string
	part     part
	effect   history.Effect
	one      bool          // concerns one timerd, not all of them
	restarts bool          // the process concerned starts again, so a stale "ready" is impossible
	delivers bool          // concerns timerd deliver too
	app      string        // the only app concerned, "" for all
	min, max time.Duration // its length
	shapes   []servers.Shape
	inject   injection
}

// Step is one fault, or two faults at the same time.
type Step struct {
	Faults []Fault
	Calm   time.Duration // after timerd has recovered
}

// Fault is one fault of a plan.
type Fault struct {
	Kind   string
	Timerd int           // the timerd concerned, if the fault concerns one
	Pick   int           // picks one of several servers
	Delay  time.Duration // after the beginning of its step
	Hold   time.Duration
	kind   kind
}

// recovery is the time that a plan allows for the recovery from a fault.
const recovery = 2 * time.Second

// Plan returns the faults of a run of some length, without the excluded kinds. The same arguments give the same plan.
// Each kind of the shape comes once before any kind comes a second time.
func Plan(seed uint64, shape servers.Shape, length time.Duration, without []string) []Step {
	random := rand.New(rand.NewPCG(seed, 0))
	var all, deck []kind
	for _, k := range kinds() {
		if k.in(shape) && !slices.Contains(without, k.name) {
			all = append(all, k)
		}
	}
	if len(all) == 0 {
		return nil
	}
	draw := func(fits func(kind) bool) (kind, bool) {
		for range 2 {
			for i, k := range deck {
				if fits(k) {
					deck = append(deck[:i:i], deck[i+1:]...)
					return k, true
				}
			}
			deck = append(deck, all...)
			random.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
		}
		return kind{}, false
	}
	var plan []Step
	for at := time.Duration(0); ; {
		first, _ := draw(func(kind) bool { return true })
		s := Step{Faults: []Fault{first.fault(random, shape)}, Calm: between(random, 2*time.Second, 4*time.Second)}
		took := s.Faults[0].Hold
		if random.IntN(4) == 0 {
			if k, ok := draw(func(k kind) bool { return k.part&first.part == 0 }); ok {
				second := k.fault(random, shape)
				second.Delay = time.Duration(random.Float64() * float64(took))
				s.Faults = append(s.Faults, second)
				took = max(took, second.Delay+second.Hold)
			}
		}
		if at += took + recovery + s.Calm; at > length {
			return plan
		}
		plan = append(plan, s)
	}
}

// Kinds returns the names of all kinds of faults, of cycles of holds and of troubles.
func Kinds() []string {
	var all []string
	for _, k := range kinds() {
		all = append(all, k.name)
	}
	for _, k := range troubles() {
		all = append(all, k.name)
	}
	return append(all, HoldKinds()...)
}

func (k kind) in(shape servers.Shape) bool {
	return len(k.shapes) == 0 || slices.Contains(k.shapes, shape)
}

func (k kind) fault(random *rand.Rand, shape servers.Shape) Fault {
	return Fault{
		Kind: k.name, Timerd: random.IntN(shape.Timerds()), Pick: random.IntN(1 << 16),
		Hold: between(random, k.min, k.max), kind: k,
	}
}

func between(random *rand.Rand, from, to time.Duration) time.Duration {
	return (from + time.Duration(random.Int64N(int64(to-from+1)))).Truncate(time.Millisecond)
}
