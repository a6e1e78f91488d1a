package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/timerd-io/timerd/bench/internal/load"
	"github.com/timerd-io/timerd/bench/internal/peer"
	"github.com/timerd-io/timerd/bench/internal/result"
)

// profile describes the parts of a run.
type profile struct {
	name    string
	systems []string
	rounds  int
	grace   time.Duration
	scale   load.Scale

	shapes []load.Shape // on a system without other timers and keys
	// crowded are the shapes for a system with other pending timers, and for a Redis with foreign keys.
	crowded []load.Shape
	pending []int
	foreign []int
	others  []string // further workloads
}

// The workloads other than shapes.
const (
	setting  = "setting"
	storms   = "storms"
	retries  = "retries"
	idle     = "idle"
	guards   = "guards"
	longest  = "longest"
	rates    = "rates"
	millions = "millions"
	shapes   = "shapes"

	durability = "durability"
)

func profileNamed(name string) (profile, error) {
	const window = 30 * time.Second
	spread10k, spike20k := load.Shape{Name: "spread-10k", Timers: 10_000, Spread: window},
		load.Shape{Name: "spike-20k", Timers: 20_000}
	switch name {
	case "full":
		return profile{
			name: name, systems: []string{"*"}, rounds: 3, grace: 40 * time.Second,
			scale: load.Scale{
				Setting: 5 * time.Second, Idle: 20 * time.Second, Storm: 50_000, Retried: 10_000, IdleFull: 1_000_000,
				Crowd: 5_000, Guarded: 100_000,
				Millions: 20_000_000, Spread: spread10k, Spike: spike20k,
				Rates: []int{100, 300, 1_000, 3_000, 10_000, 20_000}, Rated: 10 * time.Second,
				Rate: 3_000, AtOnce: 60_000, Waiting: 100_000,
			},
			shapes: []load.Shape{
				spread10k, {Name: "spread-100k", Timers: 100_000, Spread: window},
				spike20k, {Name: "spike-200k", Timers: 200_000},
			},
			crowded: []load.Shape{spread10k, spike20k},
			pending: []int{100_000, 1_000_000},
			foreign: []int{1_000_000},
			others:  furtherWorkloads(),
		}, nil
	case "quick":
		few := []load.Shape{{Name: "spread-1k", Timers: 1_000, Spread: 2 * time.Second},
			{Name: "spike-2k", Timers: 2_000}}
		return profile{
			name: name, systems: []string{"timerd", "timerd-plain", "events-hz100", "zset-1s"}, rounds: 1,
			grace: 4 * time.Second,
			scale: load.Scale{
				Setting: 500 * time.Millisecond, Idle: time.Second, Storm: 2_000, Retried: 500, IdleFull: 20_000,
				Crowd: 500, Guarded: 2_000,
				Millions: 20_000, Spread: few[0], Spike: few[1],
				Rates: []int{100, 1_000}, Rated: time.Second,
				Rate: 300, AtOnce: 2_000, Waiting: 5_000,
			},
			shapes: few, crowded: few,
			others: []string{setting},
		}, nil
	}
	return profile{}, fmt.Errorf("no profile %q: full or quick", name)
}

// workloads returns the names of all workloads in all profiles.
func workloads() []string {
	var names []string
	for _, of := range []string{"full", "quick"} {
		p, err := profileNamed(of)
		if err != nil {
			continue
		}
		for _, s := range p.shapes {
			names = append(names, s.Name)
		}
	}
	return append(names, furtherWorkloads()...)
}

// furtherWorkloads returns the names of the workloads other than shapes.
func furtherWorkloads() []string {
	return []string{setting, storms, retries, idle, guards, longest, rates, millions, shapes, durability}
}

// restrict leaves out all workloads, systems and numbers that were not requested. If none were requested, it leaves out
// none.
func (p *profile) restrict(only []string, pending, foreign []int) error {
	for _, name := range only {
		if !slices.Contains(workloads(), name) {
			return fmt.Errorf("no workload %q: %s", name, strings.Join(workloads(), ", "))
		}
	}
	if len(only) > 0 {
		unwanted := func(s load.Shape) bool { return !slices.Contains(only, s.Name) }
		p.shapes = slices.DeleteFunc(p.shapes, unwanted)
		p.crowded = slices.DeleteFunc(p.crowded, unwanted)
		p.others = slices.DeleteFunc(furtherWorkloads(), func(name string) bool { return !slices.Contains(only, name) })
	}
	for _, crowd := range []struct {
		given []int
		kept  *[]int
	}{{pending, &p.pending}, {foreign, &p.foreign}} {
		if len(crowd.given) == 0 {
			continue
		}
		if !slices.Contains(crowd.given, 0) {
			p.shapes, p.others = nil, nil
		}
		*crowd.kept = slices.DeleteFunc(slices.Clone(crowd.given), func(n int) bool { return n == 0 })
	}
	return nil
}

// step is a part of a run. It starts its own servers and ends them.
type step struct {
	name string
	run  func(ctx context.Context, b *load.Bench, save func(result.Measurement) error) error
}

// steps returns all steps. A round goes through all systems before the next round begins, so that a disturbance does
// not affect only one system.
func (p *profile) steps(specs []peer.Spec) []step {
	var all []step
	deliver := func(s peer.Spec, loads []load.Shape, pending, foreign, round int) {
		if len(loads) == 0 {
			return
		}
		all = append(all, step{
			name: fmt.Sprintf("%s, %d pending, %d foreign keys, round %d", s.Name, pending, foreign, round),
			run: func(ctx context.Context, b *load.Bench, save func(result.Measurement) error) error {
				return b.Deliver(ctx, s, loads, pending, foreign, round, save)
			},
		})
	}
	for round := 1; round <= p.rounds; round++ {
		for _, s := range specs {
			deliver(s, p.shapes, 0, 0, round)
		}
		for _, n := range p.pending {
			for _, s := range specs {
				if s.Preload && !s.Variant {
					deliver(s, p.crowded, n, 0, round)
				}
			}
		}
		for _, n := range p.foreign {
			for _, s := range specs {
				if s.OnRedis && !s.Variant {
					deliver(s, p.crowded, 0, n, round)
				}
			}
		}
		for _, name := range p.others {
			all = append(all, other(name, specs, round)...)
		}
	}
	return all
}

// other returns the steps of a workload other than a shape: none if it measures none of the systems.
func other(name string, specs []peer.Spec, round int) []step {
	one := func(f func(*load.Bench, context.Context, int, func(result.Measurement) error) error) []step {
		return []step{{
			name: fmt.Sprintf("%s, round %d", name, round),
			run: func(ctx context.Context, b *load.Bench, save func(result.Measurement) error) error {
				return f(b, ctx, round, save)
			},
		}}
	}
	type measureSome = func(*load.Bench, context.Context, []peer.Spec, int, func(result.Measurement) error) error
	some := func(among []peer.Spec, f measureSome) []step {
		if len(among) == 0 {
			return nil
		}
		return one(func(b *load.Bench, ctx context.Context, round int, save func(result.Measurement) error) error {
			return f(b, ctx, among, round, save)
		})
	}
	if !slices.ContainsFunc(specs, func(s peer.Spec) bool { return strings.HasPrefix(s.Name, "timerd") }) {
		return nil
	}
	switch name {
	case setting:
		return one((*load.Bench).Setting)
	case storms:
		return one((*load.Bench).Storms)
	case retries:
		return one((*load.Bench).Retries)
	case guards:
		return one((*load.Bench).Guards)
	case longest:
		return one((*load.Bench).Longest)
	case rates:
		return one((*load.Bench).Rates)
	case shapes:
		return some(load.InstallationsAmong(specs), (*load.Bench).Installations)
	case durability:
		return some(load.DurableAmong(specs), (*load.Bench).Durability)
	case millions:
		if round > 1 {
			return nil // once is enough: it takes a large part of a round
		}
		return one((*load.Bench).Millions)
	default:
		return one((*load.Bench).Idle)
	}
}
