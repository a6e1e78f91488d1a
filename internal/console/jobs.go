package console

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/admin"
)

// Every change is a job, whether it concerns one timer or a million. A job counts the timers it would change, waits for
// a confirmation, and then runs. Jobs live in this process. If a job is stopped, or ends with the process, its changes
// so far are the ones that its page showed last, and it can be requested again.
const (
	mostJobs      = 64               // kept in memory
	mostRunning   = 3                // counting or working at the same time
	askedFor      = 15 * time.Minute // a job's longest wait for confirmation
	jobPatience   = 700 * time.Millisecond
	jobStopWithin = 3 * time.Second
)

// Stages of a job.
const (
	stageCounting = "counting" // it counts the timers it would change
	stageAsks     = "asks"     // it waits to be confirmed
	stageRuns     = "runs"
	stageDone     = "done"
	stageStopped  = "stopped" // before its end, by a user or with timerd
	stageFailed   = "failed"
)

// work is the action of a job.
type work interface {
	// do returns the name of the action, as in a form.
	do() string
	// title describes the action and its object.
	title() string
	// back returns the address of the page with its timers.
	back() string
	// count counts the timers or letters it would change, and reports its progress.
	count(ctx context.Context, tell func(Count)) (Count, error)
	// confirm takes the fields of the confirmation; its error is a *fault.
	confirm(form url.Values) error
	// run does the work, and reports its progress. Its result also counts beside an error.
	run(ctx context.Context, tell func([]Tally)) ([]Tally, error)
	// changes returns the entry of its changes for the history once it has run, or nil if it changed nothing.
	changes() *event.Entry
}

// request is the common part of every work: its name and its page.
type request struct {
	name string // as in a form
	from string // the address of the page

	changed *event.Entry
}

// note notes changes for the history, if there are any.
func (r *request) note(e event.Entry) {
	if e.Count > 0 {
		r.changed = &e
	}
}

func (r *request) do() string               { return r.name }
func (r *request) back() string             { return r.from }
func (r *request) changes() *event.Entry    { return r.changed }
func (r *request) confirm(url.Values) error { return nil } // no fields

// Count is the extent of a job.
type Count struct {
	Touches  int64    `json:"touches"`
	AtLeast  bool     `json:"atleast,omitempty"` // it may be more
	Noun     string   `json:"-"`                 // timers, dead letters
	Looked   int64    `json:"looked,omitempty"`
	Total    int64    `json:"total,omitempty"`
	Warnings []string `json:"warnings,omitempty"`
	Some     []string `json:"some,omitempty"` // the affected texts, if few
}

// Tally counts the timers with one outcome.
type Tally struct {
	Name string `json:"name"`
	N    int64  `json:"n"`
}

// job is work with its state.
type job struct {
	id      string
	work    work
	who     string
	created time.Time

	mu      sync.Mutex
	stage   string
	counted Count
	tallies []Tally
	err     error
	ended   time.Time
	stop    context.CancelFunc // ends the running step
	done    chan struct{}      // closed at the end of the running step
}

// JobView is a job as a page shows it.
type JobView struct {
	ID      string     `json:"id"`
	Do      string     `json:"do"`
	Title   string     `json:"title"`
	Stage   string     `json:"stage"`
	Who     string     `json:"who"`
	Created time.Time  `json:"created"`
	Ended   *time.Time `json:"ended"`
	Count   Count      `json:"count"`
	Tallies []Tally    `json:"tallies"`
	Error   string     `json:"error,omitempty"`
	Back    string     `json:"-"`
	Refused *fault     `json:"-"` // the fault of the confirmation
	Work    work       `json:"-"`
	Now     time.Time  `json:"-"`
}

func (j *job) view() *JobView {
	j.mu.Lock()
	defer j.mu.Unlock()
	v := &JobView{
		ID: j.id, Do: j.work.do(), Title: j.work.title(), Stage: j.stage, Who: j.who, Created: j.created.UTC(),
		Ended: timeOrNil(j.ended),
		Count: j.counted, Tallies: slices.Clone(j.tallies), Back: j.work.back(), Work: j.work, Now: time.Now(),
	}
	if v.Tallies == nil {
		v.Tallies = []Tally{}
	}
	if j.err != nil {
		v.Error = j.err.Error()
	}
	return v
}

// Under reports whether a step is running.
func (v *JobView) Under() bool { return v.Stage == stageCounting || v.Stage == stageRuns }

// Asks reports whether the job waits to be confirmed.
func (v *JobView) Asks() bool { return v.Stage == stageAsks }

// Did returns the number handled, with any outcome.
func (v *JobView) Did() int64 {
	var sum int64
	for _, t := range v.Tallies {
		sum += t.N
	}
	return sum
}

// jobs are the jobs of this process.
type jobs struct {
	log     *slog.Logger
	journal *admin.Journal

	mu      sync.Mutex
	byID    map[string]*job
	running int
	closed  bool
	under   sync.WaitGroup
}

func newJobs(log *slog.Logger, journal *admin.Journal) *jobs {
	return &jobs{log: log, journal: journal, byID: map[string]*job{}}
}

var errTooManyJobs = &fault{Status: http.StatusTooManyRequests, Title: "Too many actions at once",
	Detail: "Three actions are running, which is the limit.", Fix: "Wait until one of them has ended, or stop it."}

var errNoJob = &fault{Status: http.StatusNotFound, Title: "No such action",
	Detail: "This timerd knows of no such action: it was requested at another timerd, too long ago, or before a " +
		"restart.",
	Fix: "Look at the timers and request it again: the finished part stays done."}

// begin makes a job of work, and starts its count.
func (s *jobs) begin(w work, who string) (*job, error) {
	j := &job{id: rand.Text(), work: w, who: who, created: time.Now(), stage: stageCounting, stop: func() {}}
	s.mu.Lock()
	s.makeRoom()
	if len(s.byID) >= mostJobs {
		s.mu.Unlock()
		return nil, errTooManyJobs
	}
	s.byID[j.id] = j
	s.mu.Unlock()
	err := s.start(j, func(ctx context.Context) {
		counted, err := w.count(ctx, func(c Count) {
			j.mu.Lock()
			j.counted = c
			j.mu.Unlock()
		})
		j.mu.Lock()
		defer j.mu.Unlock()
		j.counted = counted
		switch {
		case ctx.Err() != nil:
			j.stage, j.ended = stageStopped, time.Now()
		case err != nil:
			j.stage, j.err, j.ended = stageFailed, err, time.Now()
		default:
			j.stage = stageAsks
		}
	})
	if err != nil {
		s.mu.Lock()
		delete(s.byID, j.id)
		s.mu.Unlock()
		return nil, err
	}
	return j, nil
}

// confirm makes a job that waits for confirmation do its work.
func (s *jobs) confirm(j *job, form url.Values) error {
	j.mu.Lock()
	if j.stage != stageAsks {
		stage := j.stage
		j.mu.Unlock()
		return &fault{Status: http.StatusConflict, Title: "Nothing to confirm", Detail: "The action is " + stage + ".",
			Fix: "Look at its page."}
	}
	if time.Since(j.created) > askedFor {
		j.stage, j.ended = stageStopped, time.Now()
		j.mu.Unlock()
		return &fault{Status: http.StatusConflict, Title: "Requested too long ago",
			Detail: "The count is out of date, so nothing was changed.", Fix: "Request the action again."}
	}
	if err := j.work.confirm(form); err != nil {
		j.mu.Unlock()
		return err
	}
	j.stage = stageRuns
	touches := j.counted.Touches
	j.mu.Unlock()
	s.log.Info("console: action", "do", j.work.do(), "what", j.work.title(), "who", j.who, "touches", touches)
	err := s.start(j, func(ctx context.Context) {
		tallies, err := j.work.run(ctx, func(t []Tally) {
			j.mu.Lock()
			j.tallies = t
			j.mu.Unlock()
		})
		if e := j.work.changes(); e != nil {
			e.By = j.who
			s.journal.Note(ctx, *e)
		}
		j.mu.Lock()
		j.tallies, j.ended = tallies, time.Now()
		switch {
		case err == nil:
			j.stage = stageDone
		case ctx.Err() != nil:
			j.stage = stageStopped
		default:
			j.stage, j.err = stageFailed, err
		}
		stage := j.stage
		j.mu.Unlock()
		attrs := []any{"do", j.work.do(), "what", j.work.title(), "who", j.who, "stage", stage}
		for _, t := range tallies {
			attrs = append(attrs, t.Name, t.N)
		}
		if stage == stageFailed {
			attrs = append(attrs, "err", err)
		}
		s.log.Info("console: action ended", attrs...)
	})
	if err != nil {
		j.mu.Lock()
		j.stage = stageAsks
		j.mu.Unlock()
	}
	return err
}

// start runs a step of a job in the background.
func (s *jobs) start(j *job, part func(context.Context)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.running >= mostRunning {
		return errTooManyJobs
	}
	s.running++
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	j.mu.Lock()
	j.stop, j.done = cancel, done
	j.mu.Unlock()
	s.under.Go(func() {
		defer func() {
			cancel()
			s.mu.Lock()
			s.running--
			s.mu.Unlock()
			close(done)
		}()
		part(ctx)
	})
	return nil
}

// wait waits a moment for the running step, so that the page shows the end of a short one.
func (j *job) wait(ctx context.Context) {
	j.mu.Lock()
	done := j.done
	j.mu.Unlock()
	timer := time.NewTimer(jobPatience)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// end stops the running step, or drops a job that waits for confirmation.
func (j *job) end() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.stage == stageAsks {
		j.stage, j.ended = stageStopped, time.Now()
		return
	}
	j.stop()
}

// find returns a job.
func (s *jobs) find(id string) (*job, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if j := s.byID[id]; j != nil {
		return j, nil
	}
	return nil, errNoJob
}

// list returns all jobs, the latest first.
func (s *jobs) list() []*JobView {
	s.mu.Lock()
	all := make([]*job, 0, len(s.byID))
	for _, j := range s.byID {
		all = append(all, j)
	}
	s.mu.Unlock()
	slices.SortFunc(all, func(a, b *job) int { return b.created.Compare(a.created) })
	views := make([]*JobView, len(all))
	for i, j := range all {
		views[i] = j.view()
	}
	return views
}

// makeRoom forgets jobs that were not confirmed in time. If there are still too many, it also forgets the one that has
// waited for confirmation, or has been over, for the longest time.
func (s *jobs) makeRoom() {
	var oldest *job
	for id, j := range s.byID {
		j.mu.Lock()
		asks, under := j.stage == stageAsks, j.stage == stageCounting || j.stage == stageRuns
		j.mu.Unlock()
		switch {
		case asks && time.Since(j.created) > askedFor:
			delete(s.byID, id)
		case !under && (oldest == nil || j.created.Before(oldest.created)):
			oldest = j
		}
	}
	if len(s.byID) >= mostJobs && oldest != nil {
		delete(s.byID, oldest.id)
	}
}

// close ends all jobs and waits a while for them.
func (s *jobs) close() error {
	s.mu.Lock()
	s.closed = true
	for _, j := range s.byID {
		j.mu.Lock()
		if j.stop != nil {
			j.stop()
		}
		j.mu.Unlock()
	}
	s.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		s.under.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		return nil
	case <-time.After(jobStopWithin):
		return errors.New("console: an action has not ended in time")
	}
}
