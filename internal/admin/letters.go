package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/history"
	"github.com/timerd-io/timerd/internal/retry"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// purgeStep limits the letters that one request deletes.
const purgeStep = 50_000

// ErrNoLetter means that the named dead letter is not in the stream.
var ErrNoLetter = errors.New("timerd dead ls shows their numbers")

// Letter is one message of the stream of dead letters.
type Letter struct{ history.Record }

// Timer returns the retry that sets a letter's timer again, due at the given time as attempt 1. why is the reason if
// the letter has no timer.
func (l Letter) Timer(due schedule.Millis) (r schedule.Retry, why string) {
	switch {
	case l.Fault != "":
		return r, "not an event: " + l.Fault
	case strings.HasPrefix(l.Event.DeadReason, event.ReasonMalformed):
		return r, "a malformed message without a timer; timerd dead ls --json shows it"
	}
	return retry.Replay(l.Event, due), ""
}

// LetterSelection selects dead letters; the zero value selects all. Of Namespace, ID and Seqs, at most one is set.
type LetterSelection struct {
	Namespace keys.Namespace // only letters of these keys
	ID        string         // only letters with this id; at least one must exist
	Seqs      []uint64       // only letters with these sequence numbers; at least one must exist
	Text      string         // only letters whose reason, last error or fault contains it, in upper or lower case
	Before    time.Time      // only letters stored by then; the zero Time: no bound
}

// Query returns the query for the letters of a namespace or with a text, in pages, newest first.
func (s LetterSelection) Query() history.Query {
	return history.Query{Kind: keys.Dead, Namespace: s.Namespace, Why: s.Text}
}

// Letters are the selected letters that existed at the selection.
type Letters struct {
	stream jetstream.Stream
	reader *history.Reader
	names  keys.Names
	chosen LetterSelection
	first  uint64 // sequence numbers, both included
	last   uint64
}

// SelectLetters returns the chosen letters of the installation with these names. Its error names the missing ones; it
// wraps ErrNoLetter if letters chosen by id or number do not exist.
func SelectLetters(ctx context.Context, js jetstream.JetStream, names keys.Names,
	chosen LetterSelection) (*Letters, error) {
	stream, err := history.Open(ctx, js, names.DeadStream())
	if err != nil {
		return nil, err
	}
	state := stream.CachedInfo().State
	all := &Letters{
		stream: stream, reader: history.New(js, names), names: names, chosen: chosen, first: state.FirstSeq,
		last: state.LastSeq,
	}
	if chosen.ID == "" && len(chosen.Seqs) == 0 {
		return all, nil
	}
	found := false
	err = all.Each(ctx, func(Letter) (bool, error) {
		found = true
		return false, nil
	})
	switch {
	case err != nil:
		return nil, err
	case found:
		return all, nil
	case chosen.ID != "":
		return nil, fmt.Errorf("stream %s: no dead letter has the id %q; %w", names.DeadStream(), chosen.ID,
			ErrNoLetter)
	case len(chosen.Seqs) == 1:
		return nil, fmt.Errorf("stream %s: no dead letter %d; %w", names.DeadStream(), chosen.Seqs[0], ErrNoLetter)
	}
	return nil, fmt.Errorf("stream %s: none of these %d dead letters exists; %w", names.DeadStream(), len(chosen.Seqs),
		ErrNoLetter)
}

// Each calls f for each letter, oldest first, until it returns false or an error.
func (s *Letters) Each(ctx context.Context, f func(Letter) (bool, error)) error {
	var failed error
	tell := func(r history.Record) bool {
		if !s.chosen.Before.IsZero() && r.Stored.After(s.chosen.Before) {
			return false // letters come in stored order
		}
		if s.chosen.ID != "" && r.ID() != s.chosen.ID {
			return true
		}
		more, err := f(Letter{r})
		failed = err
		return more && err == nil
	}
	var err error
	if len(s.chosen.Seqs) > 0 {
		err = s.eachOf(ctx, tell)
	} else {
		err = s.reader.Each(ctx, s.chosen.Query(), s.first, s.last, tell)
	}
	if err != nil {
		return fmt.Errorf("read the dead letters: %w", err)
	}
	return failed
}

// eachOf calls f for the existing letters among those chosen by number.
func (s *Letters) eachOf(ctx context.Context, f func(history.Record) bool) error {
	for _, seq := range slices.Compact(slices.Sorted(slices.Values(s.chosen.Seqs))) {
		r, ok, err := s.reader.Get(ctx, keys.Dead, seq)
		if err != nil {
			return err
		}
		if ok && seq <= s.last && !f(r) {
			return nil
		}
	}
	return nil
}

// LetterCount has the numbers of the letters found.
type LetterCount struct {
	All        []uint64 // oldest first
	Replayable []uint64 // only those with a timer
}

// Find looks at all letters. It calls tell for each, with the reason why it cannot be replayed, or "".
func (s *Letters) Find(ctx context.Context, tell func(l Letter, why string) error) (LetterCount, error) {
	var found LetterCount
	err := s.Each(ctx, func(l Letter) (bool, error) {
		found.All = append(found.All, l.Seq)
		_, why := l.Timer(0)
		if why == "" {
			found.Replayable = append(found.Replayable, l.Seq)
		}
		return true, tell(l, why)
	})
	return found, err
}

// Purge deletes letters: seqs are the numbers that Find returned, or the first ones of these. It calls progress now and
// then with the number of deleted letters. Called again after an interruption, it deletes the rest.
func (s *Letters) Purge(ctx context.Context, seqs []uint64, progress func(purged int)) error {
	whole := s.chosen.ID == "" && s.chosen.Text == "" && len(s.chosen.Seqs) == 0
	purged := 0
	for some := range slices.Chunk(seqs, purgeStep) {
		if whole {
			if err := s.purgeUpTo(ctx, some[len(some)-1]); err != nil {
				return err
			}
			purged += len(some)
			progress(purged)
			continue
		}
		for _, seq := range some {
			if err := s.delete(ctx, seq); err != nil {
				return err
			}
			purged++
			progress(purged)
		}
	}
	return nil
}

// purgeUpTo deletes all letters of the namespace up to a number.
func (s *Letters) purgeUpTo(ctx context.Context, seq uint64) error {
	options := []jetstream.StreamPurgeOpt{jetstream.WithPurgeSequence(seq + 1)}
	if s.chosen.Namespace != (keys.Namespace{}) {
		options = append(options, jetstream.WithPurgeSubject(
			s.chosen.Namespace.Subject(s.names.SubjectPrefix(), keys.Dead)))
	}
	if err := s.stream.Purge(ctx, options...); err != nil {
		return fmt.Errorf("purge the dead letters: %w", err)
	}
	return nil
}

// delete deletes one letter. A missing letter is no error.
func (s *Letters) delete(ctx context.Context, seq uint64) error {
	if err := s.stream.DeleteMsg(ctx, seq); err != nil {
		if _, there, asked := s.reader.Get(ctx, keys.Dead, seq); there || asked != nil {
			return fmt.Errorf("delete dead letter %d: %w", seq, err)
		}
	}
	return nil
}

// Replay sets the timers of the letters with these numbers, to fire at once. It deletes each letter once its timer is
// set, so that an interruption loses none, and then calls done. fresh is false if the timer was already set within a
// day, by an interrupted replay or by sending its event again. Replay skips letters that are gone or have no timer. A
// letter stays if too many retries wait beside a newer timer of its key, if a guard is of another slot, if its slot is
// moving, or if its master was passed over. The others are replayed, and the error, which has the numbers of the first
// two, wraps schedule.ErrTooManyRetries, schedule.ErrGuardSlot, a *query.MovingError or a schedule.Away. Replay returns
// the number of letters deleted.
func (s *Letters) Replay(ctx context.Context, sched *schedule.Schedule, seqs []uint64,
	done func(l Letter, fresh bool) error) (replayed int, err error) {
	now, err := sched.Clock(ctx)
	if err != nil {
		return 0, err
	}
	var crowded, misplaced refusals
	var away int
	var missing error
	moving := leftOut{}
	for _, seq := range seqs {
		r, there, err := s.reader.Get(ctx, keys.Dead, seq)
		if err != nil {
			return replayed, fmt.Errorf("dead letter %d: %w", seq, err)
		}
		if !there {
			continue // somebody else replayed it
		}
		l := Letter{r}
		timer, why := l.Timer(schedule.MillisOf(now))
		if why != "" {
			continue
		}
		_, fresh, err := sched.Retry(ctx, timer)
		if errors.Is(err, schedule.ErrTooManyRetries) {
			crowded.add(seq, err)
			continue
		}
		if errors.Is(err, schedule.ErrGuardSlot) {
			misplaced.add(seq, err)
			continue
		}
		if master, is := errors.AsType[schedule.Away](err); is {
			away, missing = away+1, master
			continue
		}
		if moving.takes(keys.PartitionOf(timer.Key.String()), err) {
			away++
			continue
		}
		if err != nil {
			return replayed, err
		}
		if err := s.delete(ctx, seq); err != nil {
			return replayed, fmt.Errorf("the timer of letter %d is set, but the letter could not be deleted: %w", seq,
				err)
		}
		replayed++
		if err := done(l, fresh); err != nil {
			return replayed, err
		}
	}
	err = errors.Join(
		crowded.error("%d dead letters stay, replay them once some timers of their keys have fired: %s: %w"),
		misplaced.error("%d dead letters stay, as their guards are not in the slots of their keys: %s: %w"))
	if away > 0 {
		err = errors.Join(err, fmt.Errorf("%d dead letters stay: %w", away,
			errors.Join(missing, moving.error(nil))))
	}
	return replayed, err
}

// refusals are the messages of a stream that were refused for one reason.
type refusals struct {
	seqs  []uint64
	first error
}

func (r *refusals) add(seq uint64, err error) {
	if r.seqs = append(r.seqs, seq); r.first == nil {
		r.first = err
	}
}

// mostRefusals limits the numbers in an error.
const mostRefusals = 10

// error returns nil without refusals. format takes their count, the numbers of some, and the first one's error.
func (r *refusals) error(format string) error {
	if len(r.seqs) == 0 {
		return nil
	}
	var numbers strings.Builder
	for i, seq := range r.seqs {
		if i == mostRefusals {
			numbers.WriteString(", …")
			break
		}
		if i > 0 {
			numbers.WriteString(", ")
		}
		fmt.Fprint(&numbers, seq)
	}
	return fmt.Errorf(format, len(r.seqs), numbers.String(), r.first)
}
