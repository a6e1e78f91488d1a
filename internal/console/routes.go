package console

import (
	_ "embed" // of the OpenAPI document
	"net/http"

	"github.com/timerd-io/timerd/internal/config"
)

// router gives each page its addresses, for people and for programs, behind the guards.
type router struct {
	mux    *http.ServeMux
	guard  *guard
	render *renderer
}

// newHandler returns the handler of the console's requests, guards included.
func newHandler(settings config.Console, s *shared, render *renderer, files *staticFiles, live *streams,
	actions *Actions, jobs *jobs) http.Handler {
	rt := &router{http.NewServeMux(), newGuard(settings, files, render), render}
	letters, overview, search := &letterPages{s}, newOverviewPage(s, render, live), &searchPage{s, render}
	rt.page("/{$}", overview.overview)
	rt.page("/timers", (&timersPage{s}).timers)
	rt.page("/timers/{key}", (&timerPage{s}).timer)
	rt.page("/repeating", (&repeatingPage{s}).repeating)
	rt.page("/dead", letters.dead)
	rt.page("/dead/{seq}", letters.letter)
	rt.page("/holds", (&holdsPage{s}).holds)
	rt.page("/consumers", newConsumersPage(s).consumers)
	webhooks := newWebhookPages(s)
	rt.page("/webhooks", webhooks.webhooks)
	rt.page("/webhooks/{seq}", webhooks.delivery)
	rt.page("/system", newSystemPage(s).system)
	rt.inTurn("GET /search", search.search)
	rt.inTurn("GET "+apiPath+"/search", asJSON(search.readSearch))
	rt.mux.HandleFunc("GET "+apiPath+"/openapi.json", openAPI)
	rt.mux.HandleFunc("GET /live", overview.live)
	rt.mux.Handle("GET /static/", files)
	if actions != nil {
		rt.actions(&actionPages{s, actions, jobs, render, live,
			func(r *http.Request) string { return who(settings, r) }})
	}
	rt.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		render.fail(w, r, &fault{Status: http.StatusNotFound, Title: "No such page",
			Detail: "There is nothing at this address.",
			Fix:    "A timer's page is /timers/ and its key, percent-encoded: / is written %2F."})
	})
	return rt.guard.protect(rt.mux)
}

// page routes a page for people and for programs.
func (rt *router) page(path string, read pageFunc) {
	rt.inTurn("GET "+path, rt.render.html(read))
	api := apiPath + path
	if path == "/{$}" {
		api = apiPath + "/overview"
	}
	rt.inTurn("GET "+api, asJSON(read))
}

func (rt *router) inTurn(pattern string, handle http.HandlerFunc) {
	rt.mux.HandleFunc(pattern, rt.guard.inTurn(handle))
}

// actions adds the routes for changes. A read-only console has none.
func (rt *router) actions(a *actionPages) {
	rt.page("/jobs", a.jobsPage)
	rt.page("/jobs/{id}", a.jobPage)
	rt.mux.HandleFunc("GET /jobs/{id}/live", a.liveJob)
	rt.inTurn("POST /actions", a.action)
	rt.inTurn("POST /jobs/{id}", a.confirmJob)
	rt.inTurn("POST "+apiPath+"/jobs", a.apiAction)
	rt.inTurn("POST "+apiPath+"/jobs/{id}", a.apiConfirm)
}

//go:embed openapi.json
var openAPIDocument []byte

// openAPI answers with the description of the JSON API.
func openAPI(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/vnd.oai.openapi+json;version=3.1")
	_, _ = w.Write(openAPIDocument) // the client is gone
}
