// Package admin is the Go API for operators' programs: it holds and resumes namespaces, cancels the timers of a
// namespace, and moves or fires single timers, like the commands of timerd. It runs timerd's own scripts on the whole
// schedule. So it needs the rights of timerd's user in Redis (deploy/users.acl); those of a producer are not enough.
package admin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/internal/admin"
	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

var (
	// ErrUnconfirmed means that the namespace is held, but that its timers may still be claimed on servers without the
	// hold. The text names them. The timerds keep copying the hold to these servers; call Hold again to see whether it
	// is complete.
	ErrUnconfirmed = errors.New("held, but timers may still be claimed")
	// ErrNotHeld means that there is no hold on exactly this namespace: there was none, or all of its timers have been
	// released.
	ErrNotHeld = admin.ErrNotHeld
	// ErrAway means that masters of a cluster do not answer, so Resume has not released their timers. The timerds do
	// that once the masters answer.
	ErrAway = admin.ErrAway
	// ErrHeldAnew means that the namespace was held again while Resume released its timers. The unreleased ones stay
	// held.
	ErrHeldAnew = admin.ErrHeldAnew
	// ErrTooManyHolds means that there is no room for another hold: there are 32, or their reasons and names are long.
	ErrTooManyHolds = schedule.ErrTooManyHolds
)

// Operator runs operators' actions on the timers of a Redis. Its methods may be called concurrently. An error that
// wraps none of the errors of this package and of package client comes from the connection or the server: the call may
// or may not have taken effect, and calling again is safe.
type Operator struct{ rdb redis.UniversalClient }

// New returns an Operator on rdb: a *redis.Client, of Sentinel too, or a *redis.ClusterClient, on timerd's database.
// The caller still owns rdb and closes it.
func New(rdb redis.UniversalClient) *Operator { return &Operator{rdb: rdb} }

// HoldOption changes a hold: Reason or For. The zero HoldOption changes nothing.
type HoldOption struct {
	apply func(h *schedule.Hold, lasts *time.Duration)
}

// Reason sets the reason of a hold. The list of holds and the logs of the timerds show it. It has at most 1,024 bytes.
func Reason(text string) HoldOption {
	return HoldOption{func(h *schedule.Hold, _ *time.Duration) { h.Reason = text }}
}

// For makes a hold end by itself after d, as with ResumeNow. d is cut to whole milliseconds and must be at least a
// second; 0 means no end.
func For(d time.Duration) HoldOption {
	return HoldOption{func(_ *schedule.Hold, lasts *time.Duration) { *lasts = d }}
}

// HoldResult is the result of Hold. Times are by the Redis server's clock, in UTC, to the millisecond.
type HoldResult struct {
	Since time.Time
	Until time.Time // the time at which the hold ends by itself; the zero Time for never
	// Already means that the namespace was held before, from Since on. It is also true if go-redis repeated a call
	// whose reply was lost.
	Already bool
	// Unreplicated names the servers without a replica that has the hold: a failover may lose it. If a server could not
	// be asked, its entry is the text of the error.
	Unreplicated []string
}

// Hold is a namespace on hold, or one whose held timers are being released. Times are by the Redis server's clock, in
// UTC, to the millisecond.
type Hold struct {
	Namespace string // in the form for Hold
	Since     time.Time
	Until     time.Time // the time at which it ends by itself; the zero Time for never
	Reason    string
	By        string // its author, user@host
	Held      int64  // waiting due timers; a timer under several holds counts for each; -1 if not all could be counted

	Resume       Resume    // how its timers are being released; the zero Resume during the hold
	ResumedSince time.Time // the zero Time during the hold
	ResumedBy    string    // the author of the resume, user@host, or a text that its time was over
}

// Resume is the way to release held timers: ResumeNow, ResumeRate, ResumeShift or ResumeDead. The zero Resume is
// invalid.
type Resume struct {
	kind schedule.ResumeKind
	rate float64
}

// ResumeNow makes held timers fire at once, by due time. They keep their due times and ids, so their lateness, and the
// limit of Late, count from these due times.
func ResumeNow() Resume { return Resume{kind: schedule.ResumeNow} }

// ResumeRate is ResumeNow, but with only so many timers a second: from 1.0/60 to 1,000,000.
func ResumeRate(perSecond float64) Resume {
	return Resume{kind: schedule.ResumeRate, rate: perSecond}
}

// ResumeShift moves the due time of each held timer by the length of the hold, to the millisecond. The timer is pending
// again, with a new id. If its key was set again, both timers are kept.
func ResumeShift() Resume { return Resume{kind: schedule.ResumeShift} }

// ResumeDead turns the held timers into dead letters, with the deadreason "held".
func ResumeDead() Resume { return Resume{kind: schedule.ResumeDead} }

// String returns now, rate 200/s, shift or dead; it is empty for the zero Resume.
func (r Resume) String() string {
	if r.kind == schedule.ResumeRate {
		return fmt.Sprintf("%s %g/s", r.kind, r.rate)
	}
	return string(r.kind)
}

func (r Resume) check() error {
	switch {
	case r.kind == "":
		return errors.New("no resume kind: use ResumeNow, ResumeRate, ResumeShift or ResumeDead")
	case r.kind == schedule.ResumeRate && !(r.rate >= admin.MinRate && r.rate <= admin.MaxRate): // or not a number
		return fmt.Errorf("ResumeRate(%g): want a number of timers a second, from 1.0/60 to %.0f", r.rate,
			admin.MaxRate)
	}
	return nil
}

// Hold keeps the timers of a namespace from firing until Resume, as timerd hold does: for example while a provider is
// down. Timers that become due meanwhile wait as Held, and can be cancelled. A namespace is app[:module[:type]]; * or a
// part left out stands for any. Holds may overlap: a timer is free when none covers it.
//
// Once Hold has returned without an error, no timerd claims a timer of the namespace any more. Timers claimed before
// may still be published. Hold waits up to 5 s until that is certain. A server that does not answer may take longer,
// unless rdb's options have ContextTimeoutEnabled. A namespace that is already held keeps its Since, and gets the
// reason and the end given now. One that is being resumed is held again.
//
// Hold returns errors that wrap client.ErrInvalid, ErrTooManyHolds or ErrUnconfirmed; with ErrUnconfirmed the result is
// complete. After any other error, of the connection or of ctx, the namespace may or may not be held, and calling again
// is safe.
func (o *Operator) Hold(ctx context.Context, namespace string, opts ...HoldOption) (HoldResult, error) {
	fail := func(err error) (HoldResult, error) { return HoldResult{}, failed("hold "+namespace, err) }
	n, err := parseNamespace(namespace)
	if err != nil {
		return fail(err)
	}
	asked, lasts := schedule.Hold{Namespace: n}, time.Duration(0)
	for _, option := range opts {
		if option.apply != nil {
			option.apply(&asked, &lasts)
		}
	}
	if lasts != 0 && lasts < admin.MinHold {
		return fail(fmt.Errorf("%w: For(%v): want %v or more, or 0 for no end", client.ErrInvalid, lasts,
			admin.MinHold))
	}
	if len(asked.Reason) > admin.MaxReason {
		return fail(fmt.Errorf("%w: Reason has %d bytes, want at most %d", client.ErrInvalid, len(asked.Reason),
			admin.MaxReason))
	}
	h, err := o.holds(ctx)
	if err != nil {
		return fail(err)
	}
	held, err := h.Hold(ctx, asked, lasts)
	if err != nil {
		return fail(err)
	}
	result := HoldResult{Since: held.Hold.Since.Time(), Already: held.Was, Unreplicated: held.Unreplicated}
	if until := held.Hold.Until; until > 0 {
		result.Until = until.Time()
	}
	if len(held.Missing) > 0 {
		err = failed("hold "+namespace, fmt.Errorf("%w: %s", ErrUnconfirmed, strings.Join(held.Missing, "; ")))
	}
	return result, err
}

// Resume releases the timers of a held namespace, in one of four ways, as timerd resume does. Timers that become due
// from now on are free. Timers that another hold covers stay held; they are released in this way when that hold ends,
// and Resume does not wait for them. If several resumes cover a timer, the one with the narrowest namespace decides.
//
// Resume returns when all timers are released. With ResumeRate that takes the number of timers divided by the rate.
// Except with ResumeNow, it also waits until a timerd has looked at the timers due before, which no timerd does while
// NATS is away. Once the resume has begun, a connection error does not end it. If ctx or the process ends, the timerds
// finish it. Calling again goes on with it, or changes how the rest is released.
//
// A released timer has not fired yet: the timerds then publish its event or its dead letter.
//
// Resume returns errors that wrap client.ErrInvalid, ErrHeldAnew, ErrAway or ErrNotHeld; ErrNotHeld also if the timerds
// have finished the resume meanwhile. If ctx has ended, the error shows if the resume has begun, and its last obstacle.
// After any other error it may have begun; calling again is safe.
func (o *Operator) Resume(ctx context.Context, namespace string, how Resume) error {
	fail := func(err error) error { return failed("resume "+namespace, err) }
	n, err := parseNamespace(namespace)
	if err != nil {
		return fail(err)
	}
	if err := how.check(); err != nil {
		return fail(fmt.Errorf("%w: %w", client.ErrInvalid, err))
	}
	h, err := o.holds(ctx)
	if err != nil {
		return fail(err)
	}
	var begun bool
	var last admin.ResumeProgress
	err = h.Resume(ctx, n, schedule.Resume{Kind: how.kind, Rate: how.rate},
		func(p admin.ResumeProgress) { begun, last = true, p })
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ErrHeldAnew), errors.Is(err, ErrAway):
		return fail(err)
	case begun && last.Waits != "":
		return fail(fmt.Errorf("interrupted while it waited (%s), the timerds go on: %w", last.Waits, err))
	case begun:
		return fail(fmt.Errorf("interrupted, the timerds release the rest: %w", err))
	}
	return fail(err)
}

// Holds returns the holds by namespace, including those being resumed. It counts their timers by reading the names of
// all due timers that wait. It returns errors that wrap client.ErrInvalid if rdb cannot serve for holds, such as a
// client for one node of a cluster.
func (o *Operator) Holds(ctx context.Context) ([]Hold, error) {
	h, err := o.holds(ctx)
	if err != nil {
		return nil, failed("holds", err)
	}
	views, err := h.List(ctx)
	if err != nil {
		return nil, failed("holds", err)
	}
	list := make([]Hold, len(views))
	for i, v := range views {
		h := Hold{Namespace: v.Namespace, Since: v.Since, Reason: decoded(v.Reason), By: decoded(v.By), Held: -1}
		if v.Until != nil {
			h.Until = *v.Until
		}
		if v.Held != nil {
			h.Held = *v.Held
		}
		if r := v.Resume; r != nil {
			h.Resume, h.ResumedSince, h.ResumedBy = Resume{r.Kind, r.Rate}, r.Since, decoded(r.By)
		}
		list[i] = h
	}
	return list, nil
}

// MoveResult is the result of Fire and Move: the number of the key's timers by outcome. All numbers are 0 if the key
// has no timer.
type MoveResult struct {
	Moved   int64
	TooLate int64 // owed or firing, or fired lately
	Held    int64 // due and held: Resume releases them
	Changed int64 // set again, cancelled or moved by somebody else at the same time
	Denied  int64 // the Redis user may not write the key
}

// Fire makes the pending timers of a key fire now, retries too, as timerd fire does. The due time becomes now, so the
// event has a new id. If the timer repeats, its plan stays: a single firing is added, which is no occurrence.
//
// Fire returns errors that wrap client.ErrInvalid. After any other error the timer may or may not have been moved, and
// calling again is safe, but may add another firing to a timer that repeats.
func (o *Operator) Fire(ctx context.Context, key string) (MoveResult, error) {
	return o.move(ctx, "fire "+key, key, time.Time{})
}

// Move is like Fire, but the timers become due at the time to, by the Redis server's clock, rounded up to whole
// milliseconds. If that time has passed, they become due now. Payload, attempt and limit on lateness stay.
func (o *Operator) Move(ctx context.Context, key string, to time.Time) (MoveResult, error) {
	return o.move(ctx, "move "+key, key, to)
}

func (o *Operator) move(ctx context.Context, call, key string, to time.Time) (MoveResult, error) {
	k, err := keys.Parse(key)
	if err != nil {
		return MoveResult{}, failed(call, fmt.Errorf("%w: %w", client.ErrInvalid, err))
	}
	s, err := o.schedule(ctx)
	if err == nil {
		err = s.CheckMode(ctx)
	}
	if err != nil {
		return MoveResult{}, failed(call, err)
	}
	done, err := admin.NewTimers(s).MoveKey(ctx, k, to)
	if err != nil {
		err = failed(call, err)
	}
	return MoveResult(done), err
}

// CancelResult is the result of CancelAll.
type CancelResult struct {
	Cancelled int64
	TooLate   int64     // firing, or fired lately
	Gone      int64     // counted, but then cancelled or set to a later time by somebody else
	Until     time.Time // the last due time tried; the zero Time if none was
	Cut       bool      // too many are owed or firing to search all: call again once some have fired
}

// CancelAll cancels the timers of a namespace, as timerd cancel --all does: all of them, or the ones due before a time
// by the Redis server's clock; the zero Time is no bound. It counts them first. A timer that is set after the count
// stays if it is due later than the last one counted; otherwise, and while slots of a cluster are moving, it may be
// cancelled too. CancelAll is not atomic: it goes through the timers by due time, in steps that block Redis only
// briefly.
//
// CancelAll returns errors that wrap client.ErrInvalid. If ctx ends, or after any other error, the result is still
// correct for the work done, and calling again goes on with the rest. It is an error if slots of a cluster are moving:
// their timers are left out.
func (o *Operator) CancelAll(ctx context.Context, namespace string, before time.Time) (CancelResult, error) {
	call := "cancel all of " + namespace
	n, err := parseNamespace(namespace)
	if err != nil {
		return CancelResult{}, failed(call, err)
	}
	s, err := o.schedule(ctx)
	if err == nil {
		err = s.CheckMode(ctx)
	}
	if err != nil {
		return CancelResult{}, failed(call, err)
	}
	timers := admin.NewTimers(s)
	all := admin.Selection{Query: query.Query{Namespace: n, Before: before}}
	found, err := timers.Count(ctx, all, func(admin.TimerCount) {})
	if err != nil {
		return CancelResult{}, failed(call, err)
	}
	done, err := timers.Cancel(ctx, found.Counted, func(admin.Cancelled) {})
	if err != nil {
		err = failed(call, err)
	}
	return CancelResult(done), err
}

// failed adds the failed call to an error.
func failed(call string, err error) error {
	if errors.Is(err, schedule.ErrClusterNode) {
		err = fmt.Errorf("%w: %w: use a *redis.ClusterClient", client.ErrInvalid, err)
	}
	return fmt.Errorf("admin: %s: %w", call, err)
}

// decoded returns the original of a text that a view shows encoded.
func decoded(text string) string {
	text, _ = keys.DecodeText(text) // the view encoded it
	return text
}

func parseNamespace(text string) (keys.Namespace, error) {
	n, err := keys.ParseNamespace(text)
	if err != nil {
		err = fmt.Errorf("%w: %w", client.ErrInvalid, err)
	}
	return n, err
}

// schedule returns the schedule.
func (o *Operator) schedule(ctx context.Context) (*schedule.Schedule, error) {
	switch rdb := o.rdb.(type) {
	case *redis.Client:
	case *redis.ClusterClient:
		if rdb.Options().ClusterSlots != nil { // a client of NewFailoverClusterClient
			return nil, fmt.Errorf(
				"%w: want a client for Redis Cluster itself, or redis.NewFailoverClient for Sentinel",
				client.ErrInvalid)
		}
	default:
		return nil, fmt.Errorf("%w: want a *redis.Client or a *redis.ClusterClient, not a %T", client.ErrInvalid, o.rdb)
	}
	return schedule.Open(ctx, o.rdb, schedule.DefaultMaxPayload), nil
}

// holds returns the holds of the schedule, for one call: each resume needs its own.
func (o *Operator) holds(ctx context.Context) (*admin.Holds, error) {
	s, err := o.schedule(ctx)
	if err != nil {
		return nil, err
	}
	h := admin.NewHolds(s)
	h.Logger = slog.New(slog.DiscardHandler) // the timerds log the important events
	return h, nil
}
