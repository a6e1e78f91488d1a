package console

import (
	"net/http"
	"net/url"
)

// actionPages take a request for an action, count its timers, and run it once it is confirmed.
type actionPages struct {
	*shared
	actions *Actions
	jobs    *jobs
	render  *renderer
	streams *streams
	who     func(*http.Request) string // the user, for the log
}

// newWork reads the form of an action.
func (a *actionPages) newWork(form url.Values, r *http.Request) (work, error) {
	switch do := form.Get("do"); do {
	case "cancel", "fire", "move":
		return newTimersWork(a.actions, a.shared, do, form, r)
	case "replay", "purge":
		return newLettersWork(a.actions, do, form)
	case "resend":
		return newResendWork(a.actions, form)
	case "hold", "resume":
		return newHoldWork(a.actions, a.shared, do, form, a.who(r))
	default:
		return nil, badRequest("There is no action “"+clip(do, 50)+"”.",
			"Actions are cancel, fire, move, resend, replay, purge, hold and resume.")
	}
}

// action makes a job of a form.
func (a *actionPages) action(w http.ResponseWriter, r *http.Request) {
	j, err := a.beginJob(r)
	if err != nil {
		a.render.fail(w, r, asFault(err))
		return
	}
	http.Redirect(w, r, "/jobs/"+j.id, http.StatusSeeOther)
}

func (a *actionPages) beginJob(r *http.Request) (*job, error) {
	form, err := readForm(r)
	if err != nil {
		return nil, err
	}
	w, err := a.newWork(form, r)
	if err != nil {
		return nil, err
	}
	j, err := a.jobs.begin(w, a.who(r))
	if err != nil {
		return nil, err
	}
	j.wait(r.Context())
	return j, nil
}

// jobPage shows a job.
func (a *actionPages) jobPage(r *http.Request) (*page, error) {
	j, err := a.jobs.find(r.PathValue("id"))
	if err != nil {
		return nil, err
	}
	return pageOf(j.view()), nil
}

func pageOf(v *JobView) *page {
	p := &page{Template: "job", Title: actionName(v.Do), View: v}
	if v.Under() {
		p.Reload = 2
	}
	return p
}

// confirmJob runs a job that waits for confirmation.
func (a *actionPages) confirmJob(w http.ResponseWriter, r *http.Request) {
	j, err := a.jobs.find(r.PathValue("id"))
	if err != nil {
		a.render.fail(w, r, asFault(err))
		return
	}
	if err := a.goOn(r, j); err != nil {
		f := asFault(err)
		if f.Status != http.StatusUnprocessableEntity {
			a.render.fail(w, r, f)
			return
		}
		v := j.view()
		v.Refused = f
		p := pageOf(v)
		p.Status = f.Status
		a.render.writePage(w, r, p)
		return
	}
	http.Redirect(w, r, "/jobs/"+j.id, http.StatusSeeOther)
}

// goOn confirms or stops a job.
func (a *actionPages) goOn(r *http.Request, j *job) error {
	form, err := readForm(r)
	if err != nil {
		return err
	}
	if form.Get("stop") != "" {
		j.end()
		j.wait(r.Context())
		return nil
	}
	if form.Get("confirm") != "yes" {
		return badRequest("The form says neither confirm=yes nor stop.", "Use the button of the page.")
	}
	if err := a.jobs.confirm(j, form); err != nil {
		return err
	}
	j.wait(r.Context())
	a.state.drop()
	a.due.drop()
	return nil
}

// jobsPage lists the jobs.
func (a *actionPages) jobsPage(*http.Request) (*page, error) {
	return &page{Template: "jobs", Title: "Actions", View: &JobList{a.jobs.list()}}, nil
}

// JobList is the jobs of this process, the latest first.
type JobList struct {
	Jobs []*JobView `json:"jobs"`
}

// liveJob keeps the page of a job fresh until it must show another stage.
func (a *actionPages) liveJob(w http.ResponseWriter, r *http.Request) {
	j, err := a.jobs.find(r.PathValue("id"))
	if err != nil {
		a.render.failPlain(w, r, asFault(err))
		return
	}
	a.streams.send(w, r, func() ([]byte, bool) {
		v := j.view()
		return a.render.renderParts("job", map[string]part{"job": {"progress", v}}), !v.Under()
	})
}

// apiAction makes a job of a program's request.
func (a *actionPages) apiAction(w http.ResponseWriter, r *http.Request) {
	j, err := a.beginJob(r)
	if err != nil {
		writeProblem(w, asFault(err))
		return
	}
	w.Header().Set("Location", apiPath+"/jobs/"+j.id)
	writeJSON(w, http.StatusCreated, "application/json", j.view())
}

// apiConfirm confirms or stops a job.
func (a *actionPages) apiConfirm(w http.ResponseWriter, r *http.Request) {
	j, err := a.jobs.find(r.PathValue("id"))
	if err == nil {
		err = a.goOn(r, j)
	}
	if err != nil {
		writeProblem(w, asFault(err))
		return
	}
	writeJSON(w, http.StatusOK, "application/json", j.view())
}
