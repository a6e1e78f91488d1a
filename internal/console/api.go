package console

import (
	_ "embed"
	"net/http"
)

//go:embed openapi.json
var openAPIDocument []byte

// openAPI answers with the description of the JSON API.
func openAPI(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/vnd.oai.openapi+json;version=3.1")
	_, _ = w.Write(openAPIDocument) // whoever asked is gone
}

// apiAction makes a job of what a program asks for.
func (a *actionPages) apiAction(w http.ResponseWriter, r *http.Request) {
	j, err := a.beginJob(r)
	if err != nil {
		writeProblem(w, asFault(err))
		return
	}
	w.Header().Set("Location", apiPath+"/jobs/"+j.id)
	writeJSON(w, http.StatusCreated, "application/json", j.view())
}

// apiConfirm does what a job has asked for, or stops it.
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
